/* Bug: the completion queue has no room for the completions that are outstanding.
 * Line: is full: all of its
 * Line: entries hold completions that were not polled
 */
#include "bugs.h"

int main(void) {
	plan.cqe = 8;
	plan.max_wr = 512;
	connect_both();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	int count = cq->cqe + 1;
	for (int i = 0; i < count; i++) {
		post(&wr);
		if (BUG(0, 1)) {
			complete(1, 30);
		}
	}
	if (BUG(1, 0)) {
		sleep(1);
		complete(count, 5);
	}
	return 0;
}
