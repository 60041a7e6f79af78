/* A completion queue or queue pair is destroyed only after the program has acknowledged all events of it that it has
 * read. What is checked is the order: a verb that waits returns after the last acknowledgement. */
#include "common.h"
#include <poll.h>
#include <pthread.h>

enum { EVENTS = 3 };

static char memory[4096];
static int all_acknowledged;

struct attempt {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int result, came_after;
};

static void *destroy(void *of) {
	struct attempt *attempt = of;
	attempt->result = attempt->cq ? ibv_destroy_cq(attempt->cq) : ibv_destroy_qp(attempt->qp);
	attempt->came_after = __atomic_load_n(&all_acknowledged, __ATOMIC_SEQ_CST);
	return NULL;
}

static pthread_t begin(struct attempt *attempt) {
	pthread_t thread;
	__atomic_store_n(&all_acknowledged, 0, __ATOMIC_SEQ_CST);
	pthread_create(&thread, NULL, destroy, attempt);
	/* Time for a verb that does not wait to return; none that does would take less. */
	usleep(100000);
	return thread;
}

/* What a descriptor is ready for. As the kernel's, it is never writable: event loops that watch for both would not sleep. */
static int ready(int fd) {
	struct pollfd list = {.fd = fd, .events = POLLIN | POLLOUT};
	return poll(&list, 1, 0) < 0 ? -1 : list.revents;
}

static void completions(struct ibv_pd *pd, struct ibv_mr *mr) {
	struct ibv_comp_channel *channel = ibv_create_comp_channel(pd->context);
	struct ibv_cq *cq = ibv_create_cq(pd->context, 16, NULL, channel, 0);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	for (int i = 0; i < EVENTS; i++) {
		struct ibv_cq *which;
		void *context;
		check(ready(channel->fd) == 0, "a channel without events is not ready");
		check(ibv_req_notify_cq(cq, 0) == 0 && post_write(a, mr, mr, 8) == 0, "a WRITE");
		struct pollfd list = {.fd = channel->fd, .events = POLLIN | POLLOUT};
		check(poll(&list, 1, 10000) == 1 && list.revents == POLLIN, "a channel with an event is readable");
		check(ibv_get_cq_event(channel, &which, &context) == 0 && which == cq, "its event");
		check(wait_for(cq) == IBV_WC_SUCCESS, "its completion");
	}
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	struct attempt attempt = {.cq = cq, .result = -1};
	pthread_t thread = begin(&attempt);
	ibv_ack_cq_events(cq, EVENTS - 1);
	usleep(100000);
	__atomic_store_n(&all_acknowledged, 1, __ATOMIC_SEQ_CST);
	ibv_ack_cq_events(cq, 1);
	pthread_join(thread, NULL);
	check(attempt.result == 0 && attempt.came_after, "the queue is destroyed after the last acknowledgement");
	REFUSED(ibv_destroy_comp_channel(channel), 0);
}

static void asynchronous(struct ibv_pd *pd, struct ibv_mr *mr) {
	struct ibv_cq *cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	struct ibv_mr wrong = *mr;
	wrong.rkey ^= 0x100;
	check(post_write(a, mr, &wrong, 8) == 0 && wait_for(cq) == IBV_WC_REM_ACCESS_ERR, "a WRITE that is refused");
	struct ibv_async_event event;
	do {
		check(ibv_get_async_event(pd->context, &event) == 0, "an event");
		if (event.event_type != IBV_EVENT_QP_ACCESS_ERR) {
			ibv_ack_async_event(&event);
		}
	} while (event.event_type != IBV_EVENT_QP_ACCESS_ERR && failures == 0);
	check(event.element.qp == b, "of the queue pair that refused it");
	REFUSED(ibv_destroy_qp(a), 0);
	struct attempt attempt = {.qp = b, .result = -1};
	pthread_t thread = begin(&attempt);
	__atomic_store_n(&all_acknowledged, 1, __ATOMIC_SEQ_CST);
	ibv_ack_async_event(&event);
	pthread_join(thread, NULL);
	check(attempt.result == 0 && attempt.came_after, "the queue pair is destroyed after the acknowledgement");
	REFUSED(ibv_destroy_cq(cq), 0);
	/* Nothing is left to read. */
	check(ready(pd->context->async_fd) == 0, "no more events");
}

int main(void) {
	/* Ends a program that waits for ever. */
	alarm(60);
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	completions(pd, mr);
	asynchronous(pd, mr);
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
