/*
 * Shared by the programs in this folder. Each program has one bug, which -DFIXED removes.
 *
 * Two queue pairs of one device are connected to each other: a sends, b answers. A program sets its deviations from the
 * defaults in `struct plan` before the queue pairs are created. A bug makes a call fail or a work request complete in
 * error. Then the program ends, and the result is the line that rnic prints. A corrected program exits with 0 only if
 * everything succeeded.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef FIXED
#define BUG(wrong, right) (right)
#else
#define BUG(wrong, right) (wrong)
#endif

#define SIZE (1 << 20)
#define RIGHTS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

struct plan {
	enum ibv_qp_type type;
	int cqe;
	uint32_t max_wr, max_sge, max_inline;
	int mr_access, qp_access;
	uint8_t port, is_global, sgid_index;
	uint16_t pkey_index;
	const char *address;
	uint32_t dest_qpn;
	uint32_t a_sends_from, b_expects;
	enum ibv_mtu a_mtu, b_mtu;
	uint8_t rd_atomic, dest_rd_atomic, rnr_retry;
	int rtr_mask;
	struct ibv_srq *srq;
};

static struct plan plan = {
	.type = IBV_QPT_RC,
	.cqe = 64,
	.max_wr = 16,
	.max_sge = 2,
	.max_inline = 64,
	.mr_access = RIGHTS,
	.qp_access = RIGHTS,
	.port = 1,
	.is_global = 1,
	.a_mtu = IBV_MTU_1024,
	.b_mtu = IBV_MTU_1024,
	.rd_atomic = 4,
	.dest_rd_atomic = 4,
	.rnr_retry = 7,
	.rtr_mask = -1,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static struct ibv_mr *from, *to;
static char source[SIZE], target[SIZE];

/* Requires that a call succeeded. A failure is the bug, or, in a corrected program, an error. */
static inline void need(int holds) {
	if (!holds) {
		exit(1);
	}
}

static inline void open_device(void) {
	struct ibv_device **list = ibv_get_device_list(NULL);
	need(list && list[0]);
	context = ibv_open_device(list[0]);
	need(context != NULL);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, plan.cqe, NULL, NULL, 0);
	need(pd && cq);
	from = ibv_reg_mr(pd, source, SIZE, IBV_ACCESS_LOCAL_WRITE);
	to = ibv_reg_mr(pd, target, SIZE, plan.mr_access);
	need(from && to);
}

static inline struct ibv_qp *make(void) {
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = plan.srq,
		.qp_type = plan.type,
		.cap = {.max_send_wr = plan.max_wr,
			.max_recv_wr = plan.max_wr,
			.max_send_sge = plan.max_sge,
			.max_recv_sge = plan.max_sge,
			.max_inline_data = plan.max_inline},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	need(qp != NULL);
	return qp;
}

static inline void to_init(struct ibv_qp *qp) {
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = plan.port,
		.pkey_index = plan.pkey_index,
		.qp_access_flags = plan.qp_access,
		.qkey = 0x11,
	};
	int admission = plan.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	need(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | admission) == 0);
}

static inline struct ibv_ah_attr way(void) {
	struct ibv_ah_attr ah = {.is_global = plan.is_global, .port_num = 1, .grh = {.sgid_index = plan.sgid_index}};
	ah.grh.hop_limit = 1;
	need(ibv_query_gid(context, 1, 0, &ah.grh.dgid) == 0);
	return ah;
}

static inline void to_rtr(struct ibv_qp *qp, uint32_t peer, uint32_t psn, enum ibv_mtu mtu) {
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu,
		.dest_qp_num = peer,
		.rq_psn = psn,
		.max_dest_rd_atomic = plan.dest_rd_atomic,
		.min_rnr_timer = 12,
		.ah_attr = way(),
	};
	int mask = IBV_QP_STATE;
	if (plan.type != IBV_QPT_UD) {
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (plan.type == IBV_QPT_RC) {
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	if (qp == a && plan.address) {
		/* ::ffff:a.b.c.d */
		unsigned part[4];
		sscanf(plan.address, "%u.%u.%u.%u", &part[0], &part[1], &part[2], &part[3]);
		for (int i = 0; i < 4; i++) {
			attr.ah_attr.grh.dgid.raw[12 + i] = part[i];
		}
	}
	need(ibv_modify_qp(qp, &attr, mask & plan.rtr_mask) == 0);
}

static inline void to_rts(struct ibv_qp *qp, uint32_t psn) {
	/* 4.096 us << 10 is 4 ms. */
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 10,
		.retry_cnt = 5,
		.rnr_retry = plan.rnr_retry,
		.max_rd_atomic = plan.rd_atomic,
		.sq_psn = psn,
	};
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (plan.type == IBV_QPT_RC) {
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	need(ibv_modify_qp(qp, &attr, mask) == 0);
}

/* Opens the device and connects two of its queue pairs. */
static inline void connect_both(void) {
	open_device();
	a = make();
	b = make();
	to_init(a);
	to_init(b);
	to_rtr(a, plan.dest_qpn ? plan.dest_qpn : b->qp_num, 7, plan.a_mtu);
	to_rtr(b, a->qp_num, plan.b_expects, plan.b_mtu);
	to_rts(a, plan.a_sends_from);
	to_rts(b, 7);
}

static inline struct ibv_sge piece(uint32_t length) {
	struct ibv_sge sge = {.addr = (uintptr_t)source, .length = length, .lkey = from->lkey};
	return sge;
}

/* A signalled work request of a, with one element. */
static inline struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge) {
	struct ibv_send_wr wr = {
		.wr_id = 7,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
	};
	wr.wr.rdma.remote_addr = (uintptr_t)target;
	wr.wr.rdma.rkey = to->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)target;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = to->rkey;
	}
	return wr;
}

static inline void post(struct ibv_send_wr *wr) {
	struct ibv_send_wr *bad;
	need(ibv_post_send(a, wr, &bad) == 0);
}

static inline void post_recv(struct ibv_qp *qp, uint32_t length) {
	struct ibv_sge sge = {.addr = (uintptr_t)target, .length = length, .lkey = to->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1};
	need(ibv_post_recv(qp, &wr, &bad) == 0);
}

static inline double now(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Waits for `count` completions, all of which must succeed; gives up after `seconds`. */
static inline void complete(int count, double seconds) {
	struct ibv_wc wc;
	double end = now() + seconds;
	while (count > 0) {
		int n = ibv_poll_cq(cq, 1, &wc);
		need(n >= 0 && (n == 0 || wc.status == IBV_WC_SUCCESS));
		need(now() < end);
		count -= n;
	}
}
