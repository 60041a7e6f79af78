/* Bug: the scatter/gather element is longer than the region.
 * Line: LOC_PROT_ERR (vendor_err 4)
 * Line: which ends 64 bytes before the access ends
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(128);
	sge.addr += SIZE - BUG(64, 128);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
