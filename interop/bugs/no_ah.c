/* Bug: a UD work request has no address handle.
 * Line: wr.ud.ah is NULL: a UD work request needs an address handle
 */
#include "bugs.h"

int main(void) {
	plan.type = IBV_QPT_UD;
	connect_both();
	post_recv(b, 128);
	struct ibv_ah_attr attr = way();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	need(ah != NULL);
	wr.wr.ud.ah = BUG(NULL, ah);
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 0x11;
	post(&wr);
	complete(2, 30);
	return 0;
}
