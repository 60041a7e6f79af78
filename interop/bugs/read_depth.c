/* Bug: more READs are outstanding than the responder keeps answers for.
 * Line: RDMA_READ refused (vendor_err 104)
 * Line: max_dest_rd_atomic, which is 1 here
 * Line: REM_INV_REQ_ERR
 */
#include "bugs.h"

int main(void) {
	struct ibv_sge sge;
	struct ibv_send_wr wrs[4];
	plan.rd_atomic = BUG(4, 1);
	plan.dest_rd_atomic = 1;
	connect_both();
	sge = piece(100000);
	for (int i = 0; i < 4; i++) {
		wrs[i] = request(IBV_WR_RDMA_READ, &sge);
		wrs[i].next = i < 3 ? &wrs[i + 1] : NULL;
	}
	post(wrs);
	complete(4, 30);
	return 0;
}
