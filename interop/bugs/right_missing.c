/* Bug: the peer's region was registered without the right to write.
 * Line: lacks the right REMOTE_WRITE
 * Line: REM_ACCESS_ERR
 */
#include "bugs.h"

int main(void) {
	plan.mr_access = BUG(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, RIGHTS);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
