/* Bug: a READ is posted, but max_rd_atomic is 0.
 * Line: RDMA_READ: LOC_QP_OP_ERR (vendor_err 82)
 * Line: max_rd_atomic of the queue pair is 0
 */
#include "bugs.h"

int main(void) {
	plan.rd_atomic = BUG(0, 1);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
