/* Bug: the receiver has posted no receive, and the sender waits for one without end.
 * Line: no receive posted at the peer for 2 s, and rnr_retry 7 waits without end
 */
#include "bugs.h"

int main(void) {
	connect_both();
	if (BUG(0, 1)) {
		post_recv(b, 64);
	}
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	post(&wr);
	complete(2, BUG(4, 30));
	return 0;
}
