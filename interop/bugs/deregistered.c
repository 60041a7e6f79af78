/* Bug: the local buffer was deregistered before it was sent.
 * Line: LOC_PROT_ERR (vendor_err 1)
 * Line: it was never registered, or was deregistered or invalidated
 */
#include "bugs.h"

int main(void) {
	connect_both();
	struct ibv_sge sge = piece(64);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	post_recv(b, 64);
	if (BUG(1, 0)) {
		need(ibv_dereg_mr(from) == 0);
	}
	post(&wr);
	complete(2, 30);
	return 0;
}
