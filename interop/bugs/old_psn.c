/* Bug: the sender begins at a PSN that the receiver takes for an old one.
 * Line: RETRY_EXC_ERR (vendor_err 66)
 * Line: which was never sent: sq_psn here and rq_psn there differ
 */
#include "bugs.h"

int main(void) {
	plan.b_expects = 200;
	plan.a_sends_from = BUG(100, 200);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
