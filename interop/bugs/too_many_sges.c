/* Bug: more scatter/gather elements than the queue pair was created for.
 * Line: 3 scatter/gather elements; the queue pair was created with a maximum of 2
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sges[3] = {piece(8), piece(8), piece(8)};
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, sges);
	wr.num_sge = BUG(3, 2);
	post(&wr);
	complete(1, 30);
	return 0;
}
