/* Bug: ah_attr.is_global is 0, and RoCE needs the GRH.
 * Line: ibv_modify_qp: queue pair 0x
 * Line: is_global is 0
 */
#include "bugs.h"

int main(void) {
	plan.is_global = BUG(0, 1);
	connect_both();
	return 0;
}
