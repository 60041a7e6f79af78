/* Posts work requests whose elements point at no memory, and registers memory with rights that the program itself
 * lacks. */
#include "common.h"

static void post(struct ibv_qp *qp, struct ibv_srq *srq, struct ibv_cq *cq, struct ibv_mr *mr) {
	struct ibv_sge nowhere = {.addr = 0, .length = 8, .lkey = mr->lkey};
	struct ibv_sge here = {.addr = (uintptr_t)mr->addr, .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad_send = NULL, wr = {.wr_id = 1, .opcode = IBV_WR_SEND, .num_sge = 1};
	struct ibv_recv_wr *bad_recv = NULL, recv = {.wr_id = 2, .num_sge = 1};
	struct ibv_wc wc;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), EINVAL);
	check(bad_send == &wr, "the request is the bad one");
	wr.send_flags = IBV_SEND_INLINE;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), EINVAL);
	wr.sg_list = &nowhere;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), EFAULT);
	wr.sg_list = &here;
	wr.num_sge = -1;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), EINVAL);
	wr.send_flags = 0;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), EINVAL);
	REFUSED(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	check(bad_recv == &recv, "the receive is the bad one");
	bad_recv = NULL;
	REFUSED(ibv_post_srq_recv(srq, &recv, &bad_recv), EINVAL);
	check(bad_recv == &recv, "the shared receive is the bad one");
	recv.sg_list = &here;
	recv.num_sge = -1;
	REFUSED(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	REFUSED(ibv_post_srq_recv(srq, &recv, &bad_recv), EINVAL);
	/* Posting an empty list succeeds. A refusal works without a place to store the bad work request. */
	REFUSED(ibv_post_send(qp, NULL, &bad_send), 0);
	REFUSED(ibv_post_recv(qp, NULL, &bad_recv), 0);
	REFUSED(ibv_post_recv(qp, &recv, NULL), EINVAL);
	REFUSED(ibv_post_send(qp, &wr, NULL), EINVAL);
	check(ibv_poll_cq(cq, -1, &wc) <= 0, "less than none wanted");
	check(ibv_poll_cq(cq, 1, &wc) == 0, "nothing of that was posted");
	/* An operation that needs no memory may have none: an empty message, inline or not. */
	wr = (struct ibv_send_wr){.wr_id = 3, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
	wr.wr.rdma.rkey = mr->rkey;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE of nothing");
	nowhere.length = 0;
	wr.sg_list = &nowhere;
	wr.num_sge = 1;
	wr.send_flags |= IBV_SEND_INLINE;
	REFUSED(ibv_post_send(qp, &wr, &bad_send), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "an inline WRITE of nothing");
}

/* The same with work requests built by calls. */
static void build(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	check(ex != NULL, "a queue pair with calls");
	connect_to(qp, qp->qp_num);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, NULL, 8);
	REFUSED(ibv_wr_complete(ex), EFAULT);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data_list(ex, 2, NULL);
	REFUSED(ibv_wr_complete(ex), EINVAL);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge_list(ex, 2, NULL);
	REFUSED(ibv_wr_complete(ex), EINVAL);
	REFUSED(ibv_destroy_qp(qp), 0);
}

static void registrations(struct ibv_pd *pd) {
	enum { PAGES = 3 };
	size_t page = sysconf(_SC_PAGESIZE), all = PAGES * page;
	int write = IBV_ACCESS_LOCAL_WRITE, remote = write | IBV_ACCESS_REMOTE_WRITE;
	char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, all, remote);
	check(mr != NULL && ibv_dereg_mr(mr) == 0, "memory with all rights");
	/* Read-only memory can be registered only for reading. */
	mprotect(memory + page, page, PROT_READ);
	NONE(ibv_reg_mr(pd, memory, all, write), EFAULT);
	NONE(ibv_reg_mr(pd, memory, all, remote), EFAULT);
	NONE(ibv_reg_mr(pd, memory, all, IBV_ACCESS_MW_BIND), EFAULT);
	NONE(ibv_reg_mr_iova(pd, memory, all, 0, write), EFAULT);
	mr = ibv_reg_mr(pd, memory, all, IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "read-only memory for reading");
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, memory, all, write) != 0 &&
		      errno == EFAULT,
	      "read-only memory is not registered anew for writing");
	check(mr != NULL && ibv_dereg_mr(mr) == 0, "what was read-only goes");
	/* Memory without rights, and unmapped memory. */
	mprotect(memory + page, page, PROT_NONE);
	NONE(ibv_reg_mr(pd, memory, all, 0), EFAULT);
	NONE(ibv_reg_mr(pd, memory, all, write), EFAULT);
	munmap(memory + page, page);
	NONE(ibv_reg_mr(pd, memory, all, 0), EFAULT);
	NONE(ibv_reg_mr(pd, memory, all, write), EFAULT);
	NONE(ibv_reg_mr(pd, NULL, page, write), EFAULT);
	NONE(ibv_reg_mr(pd, (void *)0x10, 8, 0), EFAULT);
	/* The addresses beyond the end of a file have no pages. */
	FILE *file = tmpfile();
	check(file && ftruncate(fileno(file), page) == 0, "a file");
	char *mapped = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	NONE(ibv_reg_mr(pd, mapped, 2 * page, write), EFAULT);
	mr = ibv_reg_mr(pd, mapped, page, write);
	check(mr != NULL && ibv_dereg_mr(mr) == 0, "the file itself");
	/* A registration of no bytes, and of more than there are. */
	NONE(ibv_reg_mr(pd, memory, 0, write), EINVAL);
	NONE(ibv_reg_mr(pd, memory, SIZE_MAX, write), EINVAL);
	munmap(memory, all);
}

int main(void) {
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64},
	};
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	check(a && b && srq && mr, "objects");
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	post(a, srq, cq, mr);
	build(context, pd, cq);
	registrations(pd);
	printf("%d failures\n", failures);
	return failures != 0;
}
