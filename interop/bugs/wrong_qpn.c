/* Bug: the peer has no queue pair with the number dest_qp_num.
 * Line: RETRY_EXC_ERR (vendor_err 64): the peer did not answer: no answer ever came
 * Line: is that of this device, which has no queue pair 0x
 */
#include "bugs.h"

int main(void) {
	open_device();
	a = make();
	plan.dest_qpn = BUG((a->qp_num ^ 0x5a5a) & 0xffffff, 0);
	need(ibv_destroy_qp(a) == 0);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
