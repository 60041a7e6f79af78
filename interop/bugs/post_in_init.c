/* Bug: a SEND is posted while the queue pair is in INIT.
 * Line: ibv_post_send: queue pair 0x
 * Line: cannot post to the send queue in state INIT: the queue pair must be in RTS or later (EINVAL)
 */
#include "bugs.h"

int main(void) {
	struct ibv_sge sge;
	struct ibv_send_wr wr;
	if (BUG(1, 0)) {
		open_device();
		a = make();
		to_init(a);
	} else {
		connect_both();
		post_recv(b, 64);
	}
	sge = piece(64);
	wr = request(IBV_WR_SEND, &sge);
	post(&wr);
	complete(2, 30);
	return 0;
}
