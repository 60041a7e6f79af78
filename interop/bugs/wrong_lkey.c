/* Bug: the lkey of the local buffer is not one of this side.
 * Line: wr_id 7, RDMA_WRITE: LOC_PROT_ERR (vendor_err 1): the payload of a request could not be read; key
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(64);
	sge.lkey ^= BUG(0x5a5a00, 0);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
