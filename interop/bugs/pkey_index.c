/* Bug: pkey_index lies beyond the P_Key table.
 * Line: pkey_index is 1; valid values are 0 to 0
 */
#include "bugs.h"

int main(void) {
	plan.pkey_index = BUG(1, 0);
	connect_both();
	return 0;
}
