/* Bug: a UD message is longer than the MTU.
 * Line: wr_id 7: a datagram of 4097 bytes is not sent, because the port's MTU is 4096
 */
#include "bugs.h"

int main(void) {
	plan.type = IBV_QPT_UD;
	connect_both();
	post_recv(b, 8192);
	struct ibv_ah_attr attr = way();
	struct ibv_sge sge = piece(BUG(4097, 4096));
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	wr.wr.ud.ah = ibv_create_ah(pd, &attr);
	wr.wr.ud.remote_qpn = b->qp_num;
	wr.wr.ud.remote_qkey = 0x11;
	need(wr.wr.ud.ah != NULL);
	post(&wr);
	complete(2, BUG(2, 30));
	return 0;
}
