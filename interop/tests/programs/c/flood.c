/* Makes a call that fails a thousand times. */
#include "common.h"

int main(void) {
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = create_rc(pd, cq);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	for (int i = 0; i < 1000; i++) {
		check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL, "RESET -> RTS");
	}
	printf("%d failures\n", failures);
	return failures != 0;
}
