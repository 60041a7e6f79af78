/* Cancels threads inside a verb: their cleanup handlers run, the process goes on, and other threads can use the same
 * objects afterwards. rping ends the thread that waits for its events this way. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

enum { ROUNDS = 20, STORMS = 200 };

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static int cleaned, inside;
static int pipe_ends[2];

static void cleanup(void *unused) {
	(void)unused;
	__atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
}

typedef void verb(void);

static void wait_cq(void) {
	struct ibv_cq *which;
	void *of;
	if (ibv_get_cq_event(channel, &which, &of) == 0) {
		ibv_ack_cq_events(which, 1);
	}
}

static void wait_async(void) {
	struct ibv_async_event event;
	if (ibv_get_async_event(context, &event) == 0) {
		ibv_ack_async_event(&event);
	}
}

/* A poll loop with its own cancellation point, as programs have it. */
static void poll_often(void) {
	struct ibv_wc wc;
	for (int i = 0; i < 100; i++) {
		ibv_poll_cq(cq, 1, &wc);
	}
	pthread_testcancel();
}

static void register_often(void) {
	static char buffer[4096];
	struct ibv_mr *own = ibv_reg_mr(mr->pd, buffer, sizeof buffer, 0);
	int old;
	/* Destroy the region that it registered. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	if (own) {
		ibv_dereg_mr(own);
	}
	pthread_setcancelstate(old, &old);
	pthread_testcancel();
}

/* A call of the C library that does not concern a device. */
static void read_pipe(void) {
	char byte;
	if (read(pipe_ends[0], &byte, 1) < 0) {
		pthread_testcancel();
	}
}

struct task {
	verb *act;
	int type;
};

static void *run(void *argument) {
	struct task *task = argument;
	int old;
	pthread_setcanceltype(task->type, &old);
	pthread_cleanup_push(cleanup, NULL);
	__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		task->act();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void cancel_one(const char *name, verb *act, int type, int delay) {
	struct task task = {act, type};
	pthread_t thread;
	void *result = NULL;
	int before = cleaned, begun = inside;
	pthread_create(&thread, NULL, run, &task);
	while (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) == begun) {
		usleep(100);
	}
	usleep(delay);
	pthread_cancel(thread);
	pthread_join(thread, &result);
	check(result == PTHREAD_CANCELED, name);
	check(cleaned == before + 1, "the cleanup handler ran");
}

/* Everything still works: a WRITE, with an event for its completion. */
static void go_on(void) {
	struct ibv_cq *which;
	void *of;
	check(ibv_req_notify_cq(cq, 0) == 0, "arming");
	REFUSED(post_write(qp, mr, mr, 8), 0);
	check(ibv_get_cq_event(channel, &which, &of) == 0 && which == cq, "the event");
	ibv_ack_cq_events(cq, 1);
	check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE");
}

static int hits;

static void on_signal(int number) {
	(void)number;
	hits++;
}

static void *signal_main(void *argument) {
	pthread_t *thread = argument;
	usleep(50000);
	pthread_kill(*thread, SIGUSR1);
	return NULL;
}

/* A signal whose handler does not restart calls still ends the wait. */
static void interrupted(void) {
	struct sigaction action = {.sa_handler = on_signal};
	struct ibv_cq *which;
	void *of;
	pthread_t self = pthread_self(), thread;
	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&thread, NULL, signal_main, &self);
	errno = 0;
	check(ibv_get_cq_event(channel, &which, &of) == -1 && errno == EINTR, "a signal ends the wait");
	pthread_join(thread, NULL);
	check(hits == 1, "the handler ran");
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	errno = 0;
	check(ibv_get_cq_event(channel, &which, &of) == -1 && errno == EAGAIN, "nothing, and no wait");
	fcntl(channel->fd, F_SETFL, 0);
}

int main(void) {
	static char buffer[4096];
	static const struct {
		const char *name;
		verb *act;
	} verbs[] = {
		{"ibv_get_cq_event", wait_cq}, {"ibv_get_async_event", wait_async}, {"ibv_poll_cq", poll_often},
		{"ibv_reg_mr", register_often}, {"read", read_pipe},
	};
	context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 64, NULL, channel, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	qp = create_rc(pd, cq);
	struct ibv_qp *peer = create_rc(pd, cq);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	check(pipe(pipe_ends) == 0, "a pipe");
	for (int round = 0; round < ROUNDS; round++) {
		for (unsigned at = 0; at < sizeof verbs / sizeof *verbs; at++) {
			cancel_one(verbs[at].name, verbs[at].act, PTHREAD_CANCEL_DEFERRED, round * 500);
			go_on();
			/* The code between two calls must survive asynchronous cancellation, too. */
			if (verbs[at].act == wait_cq || verbs[at].act == wait_async || verbs[at].act == poll_often) {
				cancel_one(verbs[at].name, verbs[at].act, PTHREAD_CANCEL_ASYNCHRONOUS, round * 500);
				go_on();
			}
		}
	}
	/* At any moment, even between an event and the code that handles it. */
	for (int round = 0; round < STORMS; round++) {
		cancel_one("ibv_poll_cq, soon", poll_often, PTHREAD_CANCEL_ASYNCHRONOUS, round % 20);
		cancel_one("ibv_get_cq_event, soon", wait_cq, PTHREAD_CANCEL_DEFERRED, round % 20);
	}
	go_on();
	interrupted();
	go_on();
	REFUSED(ibv_destroy_qp(qp), 0);
	REFUSED(ibv_destroy_qp(peer), 0);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_destroy_comp_channel(channel), 0);
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	REFUSED(ibv_close_device(context), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
