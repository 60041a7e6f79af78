/* Bug: the buffer for the result of an atomic operation has not 8 bytes.
 * Line: LOC_LEN_ERR (vendor_err 81)
 * Line: the operation works on 8 bytes, but its buffers have 4
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(BUG(4, 8));
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
	post(&wr);
	complete(1, 30);
	return 0;
}
