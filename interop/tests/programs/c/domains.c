/* Protection domains and what is made in them: a domain is in use as long as something is in it, and not longer. */
#include "common.h"

static char memory[8192];

enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND };

/* A region moves from one domain to another, and back. */
static void reregistration(struct ibv_context *context, struct ibv_cq *cq) {
	struct ibv_pd *one = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(one, memory, 4096, RIGHTS);
	check(one && other && mr, "objects");
	REFUSED(ibv_dealloc_pd(one), EBUSY);
	struct ibv_pd *at = one, *next = other;
	for (int round = 0; round < 3; round++) {
		REFUSED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, next, NULL, 0, 0), 0);
		check(mr->pd == next && mr->addr == memory && mr->length == 4096, "the domain changes, and nothing else");
		/* The structure has the keys that work: a WRITE by them, between queue pairs of its domain. */
		struct ibv_qp *a = create_rc(next, cq), *b = create_rc(next, cq);
		connect_to(a, b->qp_num);
		connect_to(b, a->qp_num);
		memory[0] = 'x';
		memory[100] = 0;
		struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey};
		struct ibv_send_wr *bad, wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)memory + 100, .rkey = mr->rkey},
		};
		check(ibv_post_send(a, &wr, &bad) == 0 && wait_for(cq) == IBV_WC_SUCCESS, "a WRITE by the keys in the structure");
		check(memory[100] == 'x', "it arrives");
		REFUSED(ibv_destroy_qp(a), 0);
		REFUSED(ibv_destroy_qp(b), 0);
		REFUSED(ibv_dealloc_pd(next), EBUSY);
		/* The region has left this one. */
		REFUSED(ibv_dealloc_pd(at), 0);
		at = next;
		next = ibv_alloc_pd(context);
		check(next != NULL, "a domain");
	}
	REFUSED(ibv_dealloc_pd(next), 0);
	/* What is refused changes nothing. */
	check(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) != 0 && mr->pd == at, "no domain");
	REFUSED(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 4096, 100, 0), 0);
	check(mr->addr == memory + 4096 && mr->length == 100 && mr->pd == at, "other memory");
	REFUSED(ibv_dealloc_pd(at), EBUSY);
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_dealloc_pd(at), 0);
}

/* Memory windows of both types, never bound, and one that is bound. */
static void windows(struct ibv_context *context, struct ibv_cq *cq) {
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	check(pd && first && second, "windows");
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_dealloc_mw(first), 0);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_dealloc_mw(second), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, RIGHTS);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE},
	};
	uint32_t before = mw->rkey;
	check(ibv_bind_mw(a, mw, &bind) == 0 && wait_for(cq) == IBV_WC_SUCCESS, "a bind");
	check(mw->rkey != before && mw->rkey >> 8 == before >> 8, "the low byte of the key changes");
	/* A window of type 2 may keep the key that it came with: no device compares. */
	struct ibv_mw *fresh = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr *bad, wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {.mw = fresh, .rkey = fresh->rkey, .bind_info = bind.bind_info},
	};
	check(ibv_post_send(a, &wr, &bad) == 0 && wait_for(cq) == IBV_WC_SUCCESS, "a bind under the key of the window");
	struct ibv_mr through = {.addr = memory, .rkey = fresh->rkey};
	check(post_write(b, mr, &through, 8) == 0 && wait_for(cq) == IBV_WC_SUCCESS, "a WRITE through it");
	REFUSED(ibv_dealloc_mw(fresh), 0);
	REFUSED(ibv_dereg_mr(mr), EBUSY);
	REFUSED(ibv_dealloc_mw(mw), 0);
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
}

/* What is left behind in a device is found when it has no room any more. */
static void many(struct ibv_context *context) {
	struct ibv_device_attr device;
	check(ibv_query_device(context, &device) == 0, "ibv_query_device");
	struct ibv_pd *home = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(home, memory, 4096, RIGHTS);
	int left = device.max_pd + 2;
	for (; left > 0; left--) {
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_mw *mw = pd ? ibv_alloc_mw(pd, IBV_MW_TYPE_2) : NULL;
		if (!mw || ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) ||
		    ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, home, NULL, 0, 0) || ibv_dealloc_mw(mw) || ibv_dealloc_pd(pd)) {
			break;
		}
	}
	check(left == 0, "as many domains as a device has, one after the other");
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_dealloc_pd(home), 0);
}

int main(void) {
	struct ibv_context *context = open_first();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	reregistration(context, cq);
	windows(context, cq);
	many(context);
	REFUSED(ibv_destroy_cq(cq), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
