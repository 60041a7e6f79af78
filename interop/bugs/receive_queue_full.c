/* Bug: more receives are posted than the queue pair was created for.
 * Line: ibv_post_recv: queue pair 0x
 * Line: the receive queue is full: 16 work requests are outstanding
 */
#include "bugs.h"

int main(void) {
	connect_both();
	for (int i = 0; i < BUG(17, 16); i++) {
		post_recv(b, 64);
	}
	return 0;
}
