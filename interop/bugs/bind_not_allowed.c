/* Bug: a memory window is bound to a region without IBV_ACCESS_MW_BIND.
 * Line: BIND_MW: MW_BIND_ERR (vendor_err 40)
 * Line: lacks the right MW_BIND
 */
#include "bugs.h"

int main(void) {
	plan.mr_access = BUG(RIGHTS, RIGHTS | IBV_ACCESS_MW_BIND);
	connect_both();
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	need(mw != NULL);
	struct ibv_mw_bind bind = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED};
	bind.bind_info.mr = to;
	bind.bind_info.addr = (uintptr_t)target;
	bind.bind_info.length = 64;
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	need(ibv_bind_mw(a, mw, &bind) == 0);
	complete(1, 30);
	return 0;
}
