/* Bug: the address of an atomic operation is not a multiple of 8.
 * Line: ATOMIC_FETCH_AND_ADD refused (vendor_err 5)
 * Line: is not a multiple of 8
 * Line: REM_INV_REQ_ERR
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(8);
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
	wr.wr.atomic.remote_addr += BUG(4, 8);
	post(&wr);
	complete(1, 30);
	return 0;
}
