/* Bug: the completion queue is destroyed before its queue pair.
 * Line: ibv_destroy_cq: the completion queue is still in use by queue pairs
 * Line: (EBUSY)
 */
#include "bugs.h"

int main(void) {
	open_device();
	a = make();
	if (BUG(0, 1)) {
		need(ibv_destroy_qp(a) == 0);
	}
	need(ibv_destroy_cq(cq) == 0);
	return 0;
}
