/* Bug: the peer's queue pair does not allow atomic operations.
 * Line: ATOMIC_FETCH_AND_ADD refused (vendor_err 102)
 * Line: qp_access_flags lack REMOTE_ATOMIC
 */
#include "bugs.h"

int main(void) {
	plan.qp_access = BUG(RIGHTS & ~IBV_ACCESS_REMOTE_ATOMIC, RIGHTS);
	connect_both();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
