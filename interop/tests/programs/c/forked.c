/* The child of a process with an open device: its calls are refused, its exit disturbs no other process, and it may
 * open the device again. */
#include "common.h"

int main(void) {
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		check(post_write(a, mr, mr, 8) != 0, "a request of the parent's queue pair is refused");
		check(ibv_alloc_pd(context) == NULL, "the parent's device gives nothing");
		struct ibv_wc wc;
		check(ibv_poll_cq(cq, 1, &wc) <= 0, "nothing comes");
		struct ibv_context *own = open_first();
		struct ibv_pd *own_pd = ibv_alloc_pd(own);
		check(own_pd != NULL && ibv_dealloc_pd(own_pd) == 0, "a device of its own works");
		fflush(stdout);
		exit(failures != 0);
	}
	for (int i = 0; i < 100; i++) {
		REFUSED(post_write(a, mr, mr, 8), 0);
		check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE of the parent");
	}
	int status = -1;
	waitpid(child, &status, 0);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ends well");
	REFUSED(post_write(a, mr, mr, 8), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE after the child's end");
	printf("%d failures\n", failures);
	return failures != 0;
}
