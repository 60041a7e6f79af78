/* Bug: sq_psn of the sender is not rq_psn of the receiver.
 * Line: RETRY_EXC_ERR (vendor_err 66): the peer did not answer: the peer expects PSN 100, which this side never sends
 */
#include "bugs.h"

int main(void) {
	plan.b_expects = 100;
	plan.a_sends_from = BUG(200, 100);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
