/* Bug: the WRITE reaches 90 bytes beyond the end of the peer's region.
 * Line: RDMA_WRITE refused (vendor_err 4)
 * Line: which ends 90 bytes before the access ends
 * Line: REM_ACCESS_ERR
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(100);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.wr.rdma.remote_addr += SIZE - BUG(10, 100);
	post(&wr);
	complete(1, 30);
	return 0;
}
