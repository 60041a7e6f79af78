/* Bug: the buffer of the receive is in a region without LOCAL_WRITE.
 * Line: SEND refused (vendor_err 3): the receive buffer cannot be written: key
 * Line: lacks the right LOCAL_WRITE
 */
#include "bugs.h"

int main(void) {
	plan.mr_access = BUG(IBV_ACCESS_REMOTE_READ, RIGHTS);
	connect_both();
	post_recv(b, 64);
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	post(&wr);
	complete(2, 30);
	return 0;
}
