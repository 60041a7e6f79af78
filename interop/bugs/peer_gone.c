/* Bug: nobody is at the address that the queue pair is connected to.
 * Line: to 127.0.0.213 queue pair 0x
 * Line: The peer's address 127.0.0.213 is on this host, and no program serves UDP port 4791 there
 */
#include "bugs.h"

int main(void) {
	plan.address = BUG("127.0.0.213", NULL);
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
