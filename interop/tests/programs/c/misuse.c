/* Makes invalid calls: each is refused with the errno value of rdma-core and the kernel, and the process goes on. */
#include "common.h"

static void arguments(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
	char buffer[64];
	union ibv_gid gid;
	struct ibv_port_attr port;
	struct ibv_device_attr device;
	check(ibv_query_device(context, &device) == 0, "ibv_query_device");
	NONE(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_cq(context, 10, NULL, NULL, context->num_comp_vectors), EINVAL);
	NONE(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	/* An unknown right is refused, unless it is one of those that a device may ignore. */
	NONE(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | 1 << 15), EINVAL);
	struct ibv_mr *ignored = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | 1 << 29);
	check(ignored && ibv_dereg_mr(ignored) == 0, "a right that may be ignored");
	REFUSED(ibv_query_port(context, 0, &port), EINVAL);
	REFUSED(ibv_query_port(context, 2, &port), EINVAL);
	check(ibv_query_gid(context, 1, 100000, &gid) != 0, "a GID beyond the table");
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	init.cap.max_send_wr = device.max_qp_wr + 1;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_send_wr = 1;
	init.cap.max_send_sge = device.max_sge + 1;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_send_sge = 1;
	init.recv_cq = NULL;
	NONE(ibv_create_qp(pd, &init), EINVAL);
	init.recv_cq = cq;
	init.qp_type = 77;
	check(ibv_create_qp(pd, &init) == NULL && (errno == EINVAL || errno == EOPNOTSUPP), "a type that does not exist");
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh.sgid_index = 200};
	NONE(ibv_create_ah(pd, &ah), EINVAL);
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = device.max_srq_wr + 1, .max_sge = 1}};
	NONE(ibv_create_srq(pd, &srq), EINVAL);
}

static void nothing(struct ibv_pd *pd, struct ibv_cq *cq) {
	NONE(ibv_open_device(NULL), EINVAL);
	NONE(ibv_alloc_pd(NULL), EINVAL);
	NONE(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	NONE(ibv_create_qp(NULL, NULL), EINVAL);
	NONE(ibv_create_qp(pd, NULL), EINVAL);
	NONE(ibv_create_ah(pd, NULL), EINVAL);
	NONE(ibv_create_srq(pd, NULL), EINVAL);
	REFUSED(ibv_dealloc_pd(NULL), EINVAL);
	REFUSED(ibv_destroy_cq(NULL), EINVAL);
	REFUSED(ibv_destroy_qp(NULL), EINVAL);
	REFUSED(ibv_dereg_mr(NULL), EINVAL);
	struct ibv_qp *qp = create_rc(pd, cq);
	check(qp != NULL, "a queue pair");
	REFUSED(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	check(ibv_poll_cq(cq, 0, NULL) == 0, "no completion wanted");
	errno = 0;
	check(ibv_poll_cq(cq, -5, NULL) == -1 && errno == EINVAL, "less than none wanted");
	REFUSED(ibv_destroy_qp(qp), 0);
}

/* Advice on memory that is not registered for it. */
static void advice(struct ibv_pd *pd) {
	static char buffer[8192];
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_ON_DEMAND);
	check(mr != NULL, "a region");
	struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = sizeof buffer, .lkey = mr->lkey};
	REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), 0);
	REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	REFUSED(ibv_advise_mr(pd, 77, 0, &sge, 1), EOPNOTSUPP);
	REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EPERM);
	sge.length++;
	REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1), EFAULT);
	REFUSED(ibv_dereg_mr(mr), 0);
}

/* A negative number of completions is none, also if some wait. */
static void counts(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr) {
	struct ibv_wc wcs[4];
	struct ibv_qp *qp = create_rc(pd, cq);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	/* As Linux has it, RESET does not lead to ERR. */
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	to_init(qp);
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	for (int i = 0; i < 3; i++) {
		REFUSED(post_write(qp, mr, mr, 1), 0);
	}
	for (int n = 0; n > -70; n -= 23) {
		memset(wcs, 0x5a, sizeof wcs);
		int got = ibv_poll_cq(cq, n, wcs);
		check(got == (n == 0 ? 0 : -1), "less than none wanted where three wait");
		check(((char *)wcs)[0] == 0x5a && !memcmp(wcs, (char *)wcs + 1, sizeof wcs - 1), "nothing is stored");
	}
	memset(wcs, 0x5a, sizeof wcs);
	int got = 0;
	while (got == 0 && failures == 0) {
		got = ibv_poll_cq(cq, 2, wcs);
	}
	check(got == 2 && wcs[0].status == IBV_WC_WR_FLUSH_ERR && wcs[1].status == IBV_WC_WR_FLUSH_ERR, "two of three");
	check(((char *)(wcs + 2))[0] == 0x5a, "no more than two are stored");
	check(ibv_poll_cq(cq, 4, wcs) == 1 && ibv_poll_cq(cq, 4, wcs) == 0, "the third");
	REFUSED(ibv_destroy_qp(qp), 0);
}

/* Inline data of as many bytes as the queue pair takes, and of one more. */
static void inline_data(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr) {
	enum { MOST = 64 };
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = MOST},
	};
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	check(a && b && init.cap.max_inline_data == MOST, "queue pairs with inline data");
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	char bytes[MOST + 1], *target = mr->addr;
	memset(bytes, 7, sizeof bytes);
	for (int extra = 0; extra < 2; extra++) {
		/* No key: inline data needs no region. */
		struct ibv_sge sges[2] = {{(uintptr_t)bytes, 60, 0}, {(uintptr_t)bytes + 60, 4 + extra, 0}};
		struct ibv_send_wr *bad = NULL, wr = {
			.sg_list = sges,
			.num_sge = 2,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
			.wr.rdma = {.remote_addr = (uintptr_t)target, .rkey = mr->rkey},
		};
		memset(target, 0, sizeof bytes);
		REFUSED(ibv_post_send(a, &wr, &bad), extra ? EINVAL : 0);
		check(bad == (extra ? &wr : NULL), "the one that is too long is the bad one");
		if (!extra && failures == 0) {
			check(wait_for(cq) == IBV_WC_SUCCESS && memcmp(target, bytes, MOST) == 0, "as many as it takes arrive");
			check(target[MOST] == 0, "and no more");
		}
	}
	check(target[0] == 0 && ibv_poll_cq(cq, 1, &(struct ibv_wc){}) == 0, "one more is not sent");
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
}

static void states(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr) {
	struct ibv_qp *qp = create_rc(pd, cq);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.port_num = 9;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), EINVAL);
	REFUSED(post_write(qp, mr, mr, 1), EINVAL);
	to_init(qp);
	REFUSED(post_write(qp, mr, mr, 1), EINVAL);

	/* Three elements where the limit is two; seventeen receives where the limit is sixteen. */
	struct ibv_sge sges[3] = {{(uintptr_t)mr->addr, 1, mr->lkey}};
	struct ibv_recv_wr wrs[17], *bad = NULL;
	memset(wrs, 0, sizeof wrs);
	wrs[0].sg_list = sges;
	wrs[0].num_sge = 3;
	REFUSED(ibv_post_recv(qp, wrs, &bad), EINVAL);
	check(bad == wrs, "the first is the bad one");
	wrs[0].num_sge = 0;
	for (int i = 0; i < 16; i++) {
		wrs[i].next = &wrs[i + 1];
	}
	REFUSED(ibv_post_recv(qp, wrs, &bad), ENOMEM);
	check(bad == &wrs[16], "the seventeenth is the bad one");

	/* In ERR, every work request is flushed. */
	attr.qp_state = IBV_QPS_ERR;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	for (int i = 0; i < 16; i++) {
		check(wait_for(cq) == IBV_WC_WR_FLUSH_ERR, "a receive is flushed");
	}
	REFUSED(post_write(qp, mr, mr, 1), 0);
	check(wait_for(cq) == IBV_WC_WR_FLUSH_ERR, "a request in ERR is flushed");
	REFUSED(ibv_destroy_qp(qp), 0);
}

/* Attributes with more bits than the field of a device has: it keeps the low ones. */
static void wide(struct ibv_pd *pd, struct ibv_cq *cq) {
	struct ibv_qp *qp = create_rc(pd, cq);
	connect_to(qp, qp->qp_num);
	int mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER;
	struct ibv_qp_attr attr = {.timeout = 32 + 5, .retry_cnt = 8 + 3, .rnr_retry = 255, .min_rnr_timer = 32}, now;
	struct ibv_qp_init_attr init;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER), 0);
	/* The others may change in SQD only. */
	attr.qp_state = IBV_QPS_SQD;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	REFUSED(ibv_modify_qp(qp, &attr, mask), 0);
	check(ibv_query_qp(qp, &now, mask, &init) == 0 && now.timeout == 5 && now.retry_cnt == 3 && now.rnr_retry == 7 &&
		  now.min_rnr_timer == 0, "low bits");
	REFUSED(ibv_destroy_qp(qp), 0);
}

/* Which queue pairs offer which calls: each is refused where its service does not have the operation. */
static void calls(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
	const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t connected = sends | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				   IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
	const uint64_t reliable = connected | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	/* ATOMIC_WRITE and FLUSH, which older headers do not name. */
	const uint64_t placed = 1 << 11 | 1 << 12;
	const struct {
		enum ibv_qp_type type;
		uint64_t offered;
	} kinds[] = {
		{IBV_QPT_UD, sends},
		{IBV_QPT_UC, connected},
		{IBV_QPT_XRC_SEND, reliable},
		{IBV_QPT_RC, reliable | placed},
	};
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		for (int bit = 0; bit < 16; bit++) {
			struct ibv_qp_init_attr_ex init = {
				.send_cq = cq,
				.recv_cq = kinds[i].type == IBV_QPT_XRC_SEND ? NULL : cq,
				.qp_type = kinds[i].type,
				.cap = {.max_send_wr = 1, .max_send_sge = 1},
				.pd = pd,
				.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
				.send_ops_flags = 1 << bit,
			};
			errno = 0;
			struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
			int is_offered = kinds[i].offered >> bit & 1;
			if (is_offered ? !qp : qp || errno != EOPNOTSUPP) {
				printf("FAILED: type %d, call %d (errno %d)\n", kinds[i].type, bit, errno);
				failures++;
			}
			if (qp) {
				REFUSED(ibv_destroy_qp(qp), 0);
			}
		}
	}
}

static void order(struct ibv_context *context) {
	static char buffer[4096];
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp_init_attr with_srq = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_send_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &with_srq);
	check(channel && pd && cq && mr && srq && qp, "objects");
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	REFUSED(ibv_destroy_comp_channel(channel), EBUSY);
	REFUSED(ibv_destroy_qp(qp), 0);
	REFUSED(ibv_destroy_srq(srq), 0);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	REFUSED(ibv_destroy_comp_channel(channel), EBUSY);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_destroy_comp_channel(channel), 0);
}

/* An object whose structure has another handle than verbs gave it is not destroyed. */
#define KEEPS(object, destroy)                                                                     \
	do {                                                                                       \
		(object)->handle ^= 0x5a;                                                          \
		REFUSED(destroy, ENOENT);                                                          \
		(object)->handle ^= 0x5a;                                                          \
		REFUSED(destroy, 0);                                                               \
	} while (0)

static void handles(struct ibv_context *context) {
	static char buffer[4096];
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp *qp = create_rc(pd, cq);
	struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh.hop_limit = 1};
	check(ibv_query_gid(context, 1, 0, &way.grh.dgid) == 0, "the GID");
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	struct ibv_alloc_dm_attr size = {.length = 64};
	struct ibv_dm *dm = ibv_alloc_dm(context, &size);
	check(pd && cq && mr && mw && srq && qp && ah && dm, "objects");
	KEEPS(ah, ibv_destroy_ah(ah));
	KEEPS(qp, ibv_destroy_qp(qp));
	KEEPS(srq, ibv_destroy_srq(srq));
	KEEPS(mw, ibv_dealloc_mw(mw));
	KEEPS(mr, ibv_dereg_mr(mr));
	KEEPS(dm, ibv_free_dm(dm));
	KEEPS(cq, ibv_destroy_cq(cq));
	KEEPS(pd, ibv_dealloc_pd(pd));
}

/* The kernel pins the pages that a region touches, and refuses a region that touches none. A region of no bytes inside a page is
 * good for operations without data. */
static void no_bytes(struct ibv_pd *pd, struct ibv_cq *cq) {
	static char buffer[8192] __attribute__((aligned(4096)));
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	NONE(ibv_reg_mr(pd, buffer, 0, rights), EINVAL);
	NONE(ibv_reg_mr(pd, NULL, 0, rights), EINVAL);
	NONE(ibv_reg_mr(pd, buffer + 10, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer + 10, 0, rights);
	check(mr && mr->addr == buffer + 10 && mr->length == 0, "a region of no bytes");
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	REFUSED(post_write(a, mr, mr, 0), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE of nothing");
	REFUSED(post_write(a, mr, mr, 1), 0);
	check(wait_for(cq) == IBV_WC_LOC_PROT_ERR, "a WRITE of a byte that it has not");
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_dereg_mr(mr), 0);
}

int main(void) {
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(pd && cq && mr, "objects");
	arguments(context, pd, cq);
	nothing(pd, cq);
	advice(pd);
	counts(pd, cq, mr);
	inline_data(pd, cq, mr);
	states(pd, cq, mr);
	wide(pd, cq);
	calls(context, pd, cq);
	order(context);
	handles(context);
	no_bytes(pd, cq);
	/* After all this, the device still works. */
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	REFUSED(post_write(a, mr, mr, 8), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE");
	printf("%d failures\n", failures);
	/* Exit without destroying anything. */
	return failures != 0;
}
