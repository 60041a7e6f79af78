/* Bug: the two ends have different path MTUs.
 * Line: does not fit the path MTU: 4096 bytes, with a path MTU of 1024 here
 * Line: REM_INV_REQ_ERR
 */
#include "bugs.h"

int main(void) {
	plan.a_mtu = BUG(IBV_MTU_4096, IBV_MTU_1024);
	connect_both();
	struct ibv_sge sge = piece(8192);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
