/* Bug: a READ is posted to a UC queue pair.
 * Line: RDMA_READ is not supported on UC queue pairs
 */
#include "bugs.h"

int main(void) {
	plan.type = BUG(IBV_QPT_UC, IBV_QPT_RC);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_READ, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
