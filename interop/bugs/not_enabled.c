/* Bug: the peer's queue pair does not allow WRITEs.
 * Line: RDMA_WRITE refused (vendor_err 102)
 * Line: qp_access_flags lack REMOTE_WRITE
 * Line: REM_INV_REQ_ERR
 */
#include "bugs.h"

int main(void) {
	plan.qp_access = BUG(IBV_ACCESS_LOCAL_WRITE, RIGHTS);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
