/* Bug: nothing is signalled, so the program cannot know when the send queue has room.
 * Line: the send queue is full: 16 work requests are outstanding
 * Line: 16 unsignalled requests fill the send queue
 */
#include "bugs.h"

int main(void) {
	struct ibv_sge sge;
	struct ibv_send_wr wrs[17];
	connect_both();
	sge = piece(64);
	for (int i = 0; i < 17; i++) {
		wrs[i] = request(IBV_WR_SEND, &sge);
		wrs[i].send_flags = BUG(0, i == 15 ? IBV_SEND_SIGNALED : 0);
		wrs[i].next = i < BUG(16, 15) ? &wrs[i + 1] : NULL;
	}
	/* The peer delays them: it has posted no receives yet. */
	post(wrs);
	for (int i = 0; i < 16; i++) {
		post_recv(b, 64);
	}
	complete(17, 30);
	return 0;
}
