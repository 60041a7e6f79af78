/* Bug: the peer's queue pair is in INIT still.
 * Line: no answer ever came
 * Line: in INIT, connected to nobody
 */
#include "bugs.h"

int main(void) {
	open_device();
	a = make();
	b = make();
	to_init(a);
	to_init(b);
	to_rtr(a, b->qp_num, 0, plan.a_mtu);
	to_rts(a, 0);
	if (BUG(0, 1)) {
		to_rtr(b, a->qp_num, 0, plan.b_mtu);
	}
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
