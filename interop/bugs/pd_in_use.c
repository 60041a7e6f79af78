/* Bug: the protection domain is deallocated while objects are in it.
 * Line: ibv_dealloc_pd: the protection domain is still in use by
 * Line: (EBUSY)
 */
#include "bugs.h"

int main(void) {
	open_device();
	if (BUG(0, 1)) {
		need(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
	}
	need(ibv_dealloc_pd(pd) == 0);
	return 0;
}
