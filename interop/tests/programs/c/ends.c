/* Ends as its argument names, in the middle of traffic, without closing anything. First prints how many WRITEs have
 * completed. */
#include "common.h"
#include <pthread.h>
#include <signal.h>

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static int completed;

static void *write_all_the_time(void *unused) {
	for (;;) {
		check(post_write(qp, mr, mr, 1000) == 0, "a WRITE is posted");
		check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE");
		__atomic_add_fetch(&completed, 1, __ATOMIC_SEQ_CST);
	}
	return unused;
}

int main(int count, char **arguments) {
	static char buffer[4096];
	const char *way = count > 1 ? arguments[1] : "return";
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	qp = create_rc(pd, cq);
	struct ibv_qp *peer = create_rc(pd, cq);
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	pthread_t thread;
	pthread_create(&thread, NULL, write_all_the_time, NULL);
	int enough = count > 2 ? atoi(arguments[2]) : 100;
	while (__atomic_load_n(&completed, __ATOMIC_SEQ_CST) < enough) {
		usleep(100);
	}
	printf("%d\n", __atomic_load_n(&completed, __ATOMIC_SEQ_CST));
	fflush(stdout);
	if (!strcmp(way, "return")) {
		return 0;
	} else if (!strcmp(way, "exit")) {
		exit(0);
	} else if (!strcmp(way, "_exit")) {
		_exit(0);
	} else if (!strcmp(way, "abort")) {
		abort();
	}
	/* Programs that are started in the background by a shell inherit that SIGINT is ignored. */
	signal(atoi(way), SIG_DFL);
	kill(getpid(), atoi(way));
	pause();
	return 1;
}
