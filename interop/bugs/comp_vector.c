/* Bug: the device has one completion vector, and the program asks for the second.
 * Line: ibv_create_cq: comp_vector is 1; this device has one, 0 (EINVAL)
 */
#include "bugs.h"

int main(void) {
	open_device();
	need(ibv_create_cq(context, 8, NULL, NULL, BUG(1, 0)) != NULL);
	return 0;
}
