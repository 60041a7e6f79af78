/* Threads that share a device: each creates, uses and destroys its own objects, concurrently with the others. */
#include "common.h"
#include <pthread.h>

enum { THREADS = 8, ROUNDS = 20, WRITES = 50 };

static void *work(void *argument) {
	static char buffers[THREADS][4096];
	struct ibv_context *context = argument;
	static int next;
	char *buffer = buffers[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)];
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_pd *pd = ibv_alloc_pd(context);
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		struct ibv_mr *mr = ibv_reg_mr(pd, buffer, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
		connect_to(a, b->qp_num);
		connect_to(b, a->qp_num);
		for (int i = 0; i < WRITES; i++) {
			REFUSED(post_write(a, mr, mr, 8), 0);
			check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE");
		}
		REFUSED(ibv_destroy_qp(a), 0);
		REFUSED(ibv_destroy_qp(b), 0);
		REFUSED(ibv_dereg_mr(mr), 0);
		REFUSED(ibv_destroy_cq(cq), 0);
		REFUSED(ibv_dealloc_pd(pd), 0);
	}
	return NULL;
}

int main(void) {
	struct ibv_context *context = open_first();
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++) {
		pthread_create(&threads[i], NULL, work, context);
	}
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	REFUSED(ibv_close_device(context), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
