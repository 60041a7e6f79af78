/* Bug: a datagram arrives where no receive is posted.
 * Line: is lost: no receive is posted
 */
#include "bugs.h"

int main(void) {
	plan.type = IBV_QPT_UD;
	connect_both();
	if (BUG(0, 1)) {
		post_recv(b, 128);
	}
	struct ibv_ah_attr attr = way();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	wr.wr.ud.ah = ibv_create_ah(pd, &attr);
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 0x11;
	need(wr.wr.ud.ah != NULL);
	post(&wr);
	complete(2, BUG(2, 30));
	return 0;
}
