/* Shared by these programs: devices, a queue pair connected to another one of the same process, and checks that
 * print. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* No program needs all of these functions. */
#pragma GCC diagnostic ignored "-Wunused-function"

static int failures;

static void check(int holds, const char *what) {
	if (!holds) {
		printf("FAILED: %s (errno %d)\n", what, errno);
		failures++;
	}
}

/* A call that returns an errno value. */
#define REFUSED(call, wanted)                                                                      \
	do {                                                                                       \
		int got = (call);                                                                  \
		if (got != (wanted)) {                                                             \
			printf("FAILED: %s gave %d, not %d\n", #call, got, wanted);                \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

/* A call that returns a pointer, or NULL with errno set. */
#define NONE(call, wanted)                                                                         \
	do {                                                                                       \
		errno = 0;                                                                         \
		if ((void *)(call) != NULL || errno != (wanted)) {                                 \
			printf("FAILED: %s, errno %d, not %d\n", #call, errno, wanted);            \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

static struct ibv_context *open_first(void) {
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = list && count > 0 ? ibv_open_device(list[0]) : NULL;
	if (!context) {
		perror("no device");
		exit(2);
	}
	ibv_free_device_list(list);
	return context;
}

static struct ibv_qp *create_rc(struct ibv_pd *pd, struct ibv_cq *cq) {
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2},
	};
	return ibv_create_qp(pd, &init);
}

static inline void to_init(struct ibv_qp *qp) {
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
}

static inline void join(struct ibv_qp *qp, uint32_t peer, union ibv_gid gid) {
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
	};
	to_init(qp);
	check(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
	      "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	check(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC) == 0,
	      "RTS");
}

static inline void connect_to(struct ibv_qp *qp, uint32_t peer) {
	union ibv_gid gid;
	check(ibv_query_gid(qp->context, 1, 0, &gid) == 0, "the GID");
	join(qp, peer, gid);
}

static inline int post_write(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to, uint32_t length) {
	struct ibv_sge sge = {.addr = (uintptr_t)from->addr, .length = length, .lkey = from->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = 7,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = (uintptr_t)to->addr, .rkey = to->rkey},
	};
	return ibv_post_send(qp, &wr, &bad);
}

static inline enum ibv_wc_status wait_for(struct ibv_cq *cq) {
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {
	}
	check(n == 1, "a completion");
	return wc.status;
}
