/* Threads use objects while another thread tries in vain to destroy them: a refusal does not affect their work. */
#include "common.h"
#include <pthread.h>

enum { USERS = 2, TRIES = 20000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_comp_channel *channel;
static int stop, uses;

static void *poll_all_the_time(void *unused) {
	struct ibv_wc wc;
	while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
		if (ibv_poll_cq(cq, 1, &wc) != 0 || ibv_req_notify_cq(cq, 0) != 0) {
			__atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST);
		}
		__atomic_add_fetch(&uses, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

static void *register_all_the_time(void *unused) {
	static char buffer[4096];
	struct ibv_srq_attr attr;
	while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
		struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
		if (mr == NULL || ibv_dereg_mr(mr) != 0 || ibv_query_srq(srq, &attr) != 0) {
			__atomic_add_fetch(&failures, 1, __ATOMIC_SEQ_CST);
		}
		__atomic_add_fetch(&uses, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

int main(void) {
	context = open_first();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
	srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_send_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "a queue pair");
	pthread_t threads[2 * USERS];
	for (int i = 0; i < USERS; i++) {
		pthread_create(&threads[2 * i], NULL, poll_all_the_time, NULL);
		pthread_create(&threads[2 * i + 1], NULL, register_all_the_time, NULL);
	}
	int refused = 0;
	for (int i = 0; i < TRIES || __atomic_load_n(&uses, __ATOMIC_SEQ_CST) < 1000; i++) {
		refused += ibv_destroy_cq(cq) == EBUSY;
		refused += ibv_dealloc_pd(pd) == EBUSY;
		refused += ibv_destroy_srq(srq) == EBUSY;
		refused += ibv_destroy_comp_channel(channel) == EBUSY;
		if (refused != 4 * (i + 1)) {
			printf("FAILED: not refused in round %d\n", i);
			return 1;
		}
	}
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 2 * USERS; i++) {
		pthread_join(threads[i], NULL);
	}
	REFUSED(ibv_destroy_qp(qp), 0);
	REFUSED(ibv_destroy_srq(srq), 0);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_destroy_comp_channel(channel), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	REFUSED(ibv_close_device(context), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
