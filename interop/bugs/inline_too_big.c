/* Bug: more inline data than the queue pair was created for.
 * Line: 65 bytes of inline data; the queue pair was created with a maximum of 64
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(BUG(65, 64));
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	wr.send_flags |= IBV_SEND_INLINE;
	post(&wr);
	complete(1, 30);
	return 0;
}
