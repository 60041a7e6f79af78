/* Bug: a receive is posted to a queue pair that receives through a shared receive queue.
 * Line: this queue pair receives through its shared receive queue: post there
 */
#include "bugs.h"

int main(void) {
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	open_device();
	plan.srq = BUG(1, 0) ? ibv_create_srq(pd, &init) : NULL;
	a = make();
	to_init(a);
	post_recv(a, 64);
	return 0;
}
