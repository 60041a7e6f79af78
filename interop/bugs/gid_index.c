/* Bug: sgid_index names an empty entry of the GID table.
 * Line: no RoCE v2 GID is at sgid_index 7 of the GID table; the device's address is at 0
 */
#include "bugs.h"

int main(void) {
	plan.sgid_index = BUG(7, 0);
	connect_both();
	return 0;
}
