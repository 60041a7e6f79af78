/* Posts lists of work requests that lie on pages which are not there yet: while the page fault is handled, other threads
 * use the device. */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <signal.h>

enum { PAGE = 4096, LONG = 40 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static char *page;
/* Counted up by the handler when it begins, and by the other thread when it has used the device since. */
static int faults, answers;

static int read_count(int *count) {
	return __atomic_load_n(count, __ATOMIC_SEQ_CST);
}

/* Waits until the other thread has used the device, and brings the page. */
static void handle(int number, siginfo_t *info, void *ignored) {
	(void)number, (void)ignored;
	char *at = info->si_addr;
	if (at < page || at >= page + PAGE) {
		static const char what[] = "FAILED: a fault somewhere else\n";
		(void)!write(1, what, sizeof what - 1);
		_exit(1);
	}
	int wanted = __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; read_count(&answers) < wanted; i++) {
		if (i == 30000) {
			static const char what[] = "FAILED: the device is locked while a list is read\n";
			(void)!write(1, what, sizeof what - 1);
			_exit(1);
		}
		usleep(1000);
	}
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

/* Uses the device after each fault. */
static void *other(void *ignored) {
	static char buffer[64];
	while (read_count(&answers) < 4) {
		if (read_count(&faults) > read_count(&answers)) {
			struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
			check(mr && ibv_dereg_mr(mr) == 0, "a registration meanwhile");
			__atomic_add_fetch(&answers, 1, __ATOMIC_SEQ_CST);
		}
		usleep(100);
	}
	return ignored;
}

int main(void) {
	static char buffer[64];
	struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
	sigaction(SIGSEGV, &action, NULL);
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	context = open_first();
	pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 2, .max_recv_sge = 2},
	};
	struct ibv_qp *a = ibv_create_qp(pd, &init), *b = ibv_create_qp(pd, &init);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	pthread_t thread;
	pthread_create(&thread, NULL, other, NULL);

	/* The last request of the list is on the page; the list is short, and then long. */
	static const int lengths[] = {2, LONG};
	for (int i = 0; i < 2; i++) {
		int length = lengths[i];
		struct ibv_sge sge = {(uintptr_t)buffer, 1, 0};
		static struct ibv_recv_wr receives[LONG], *bad_receive;
		struct ibv_recv_wr *last_receive = (void *)page;
		memset(receives, 0, sizeof receives);
		for (int n = 0; n < length - 1; n++) {
			receives[n].wr_id = n;
			receives[n].next = n == length - 2 ? last_receive : &receives[n + 1];
		}
		*last_receive = (struct ibv_recv_wr){.wr_id = length - 1};
		mprotect(page, PAGE, PROT_NONE);
		REFUSED(ibv_post_recv(b, receives, &bad_receive), 0);

		static struct ibv_send_wr sends[LONG], *bad_send;
		struct ibv_send_wr *last_send = (void *)page;
		memset(sends, 0, sizeof sends);
		for (int n = 0; n < length - 1; n++) {
			sends[n].wr_id = 100 + n;
			sends[n].opcode = IBV_WR_SEND;
			sends[n].send_flags = IBV_SEND_SIGNALED;
			sends[n].next = n == length - 2 ? last_send : &sends[n + 1];
		}
		/* A wrong one: all before it are posted. */
		*last_send = (struct ibv_send_wr){.wr_id = 7, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 3};
		mprotect(page, PAGE, PROT_NONE);
		REFUSED(ibv_post_send(a, sends, &bad_send), EINVAL);
		check(bad_send == last_send, "the last is the bad one");
		int sent = 0, received = 0;
		while (sent + received < 2 * (length - 1)) {
			struct ibv_wc wc;
			if (ibv_poll_cq(cq, 1, &wc) == 1) {
				int expected = wc.wr_id >= 100 ? 100 + sent++ : received++;
				check(wc.status == IBV_WC_SUCCESS && (int)wc.wr_id == expected, "in order");
			}
		}
		/* The receive of the page is left: use it up. */
		struct ibv_send_wr one = {.wr_id = 100, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
		REFUSED(ibv_post_send(a, &one, &bad_send), 0);
		check(wait_for(cq) == IBV_WC_SUCCESS && wait_for(cq) == IBV_WC_SUCCESS, "the last receive");
	}
	pthread_join(thread, NULL);
	check(read_count(&faults) == 4, "four lists, four faults");
	printf("%d failures\n", failures);
	return failures != 0;
}
