/* Bug: memory is registered that is not mapped.
 * Line: ibv_reg_mr: not all of 4096 bytes from 0x10000 on are mapped (EFAULT)
 */
#include "bugs.h"

int main(void) {
	open_device();
	struct ibv_mr *mr = ibv_reg_mr(pd, BUG((void *)0x10000, target), 4096, RIGHTS);
	need(mr != NULL);
	return 0;
}
