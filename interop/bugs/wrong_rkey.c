/* Bug: the rkey is not one that the peer has.
 * Line: RDMA_WRITE refused (vendor_err 1): key
 * Line: wr_id 7, RDMA_WRITE: REM_ACCESS_ERR (vendor_err 68)
 * Line: The peer says: key
 * Line: names no memory region
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.wr.rdma.rkey ^= BUG(0x5a5a00, 0);
	post(&wr);
	complete(1, 30);
	return 0;
}
