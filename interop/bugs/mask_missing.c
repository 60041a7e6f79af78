/* Bug: IBV_QP_DEST_QPN is missing from the mask of INIT -> RTR.
 * Line: ibv_modify_qp: queue pair 0x
 * Line: INIT -> RTR of an RC queue pair needs dest_qp_num
 */
#include "bugs.h"

int main(void) {
	plan.rtr_mask = BUG(~IBV_QP_DEST_QPN, -1);
	connect_both();
	return 0;
}
