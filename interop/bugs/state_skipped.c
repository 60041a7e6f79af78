/* Bug: the queue pair is to go from RESET to RTS at once.
 * Line: an RC queue pair goes RESET -> INIT -> RTR -> RTS
 */
#include "bugs.h"

int main(void) {
	if (BUG(1, 0)) {
		open_device();
		a = make();
		to_rts(a, 0);
	} else {
		connect_both();
	}
	return 0;
}
