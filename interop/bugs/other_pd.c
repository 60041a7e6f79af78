/* Bug: the rkey is of a region in another protection domain than the peer's queue pair.
 * Line: belongs to another protection domain than the queue pair
 * Line: REM_ACCESS_ERR
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_pd *other = ibv_alloc_pd(context);
	need(other != NULL);
	struct ibv_mr *mr = ibv_reg_mr(BUG(other, pd), target, SIZE, RIGHTS);
	need(mr != NULL);
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.wr.rdma.rkey = mr->rkey;
	post(&wr);
	complete(1, 30);
	return 0;
}
