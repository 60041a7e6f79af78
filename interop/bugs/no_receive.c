/* Bug: the receiver has posted no receive.
 * Line: SEND: RNR_RETRY_EXC_ERR (vendor_err 67): no receive posted at the peer for
 */
#include "bugs.h"

int main(void) {
	plan.rnr_retry = 3;
	connect_both();
	if (BUG(0, 1)) {
		post_recv(b, 64);
	}
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	post(&wr);
	complete(2, 30);
	return 0;
}
