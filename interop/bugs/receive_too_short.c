/* Bug: the message is longer than the receive that it meets.
 * Line: SEND refused (vendor_err 101): message longer than the receive buffer: 64 bytes arrived, and the receive has 16
 * Line: its receive, wr_id 9, completes with LOC_LEN_ERR
 */
#include "bugs.h"

int main(void) {
	connect_both();
	post_recv(b, BUG(16, 64));
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	post(&wr);
	complete(2, 30);
	return 0;
}
