/* Bug: the device has one port, and the program asks for the second.
 * Line: port_num is 2; valid values are 1 to 1
 */
#include "bugs.h"

int main(void) {
	plan.port = BUG(2, 1);
	connect_both();
	return 0;
}
