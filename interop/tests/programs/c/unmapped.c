/* Unmaps buffers while they are registered: the work requests fail, and the process survives. */
#include "common.h"

#define SIZE 8192

static char *map(void) {
	return mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static enum ibv_wc_status run(struct ibv_context *context, int unmap_source, int unmap_target) {
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *from = ibv_reg_mr(pd, map(), SIZE, access), *to = ibv_reg_mr(pd, map(), SIZE, access);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	if (unmap_source) {
		munmap(from->addr, SIZE);
	}
	if (unmap_target) {
		munmap(to->addr, SIZE);
	}
	check(post_write(a, from, to, SIZE) == 0, "it is posted");
	enum ibv_wc_status status = wait_for(cq);
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_dereg_mr(from), 0);
	REFUSED(ibv_dereg_mr(to), 0);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	return status;
}

int main(void) {
	struct ibv_context *context = open_first();
	check(run(context, 0, 0) == IBV_WC_SUCCESS, "both mapped");
	check(run(context, 1, 0) == IBV_WC_LOC_PROT_ERR, "the source is unmapped");
	check(run(context, 0, 1) == IBV_WC_REM_ACCESS_ERR, "the target is unmapped");
	check(run(context, 0, 0) == IBV_WC_SUCCESS, "both mapped again");
	REFUSED(ibv_close_device(context), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
