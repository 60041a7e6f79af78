/* Forks at arbitrary moments, while threads of the parent open and close devices and create objects: no child waits
 * for a lock held by a thread that the child does not have. */
#include "common.h"
#include <pthread.h>
#include <signal.h>

enum { THREADS = 3, FORKS = 200, SECONDS = 30 };

static int stop;

static void use(void) {
	static char buffer[4096];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, 0);
	check(pd && cq && mr, "objects");
	REFUSED(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_destroy_cq(cq), 0);
	REFUSED(ibv_dealloc_pd(pd), 0);
	REFUSED(ibv_close_device(context), 0);
}

static void *use_all_the_time(void *unused) {
	while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
		use();
	}
	return unused;
}

int main(int count, char **arguments) {
	int forks = count > 1 ? atoi(arguments[1]) : FORKS;
	pthread_t threads[THREADS];
	/* The first fork may coincide with the first open. */
	for (int i = 0; i < THREADS; i++) {
		pthread_create(&threads[i], NULL, use_all_the_time, NULL);
	}
	for (int i = 0; i < forks && failures == 0; i++) {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			alarm(SECONDS);
			use();
			fflush(stdout);
			exit(failures != 0);
		}
		int status = -1;
		waitpid(child, &status, 0);
		if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
			printf("FAILED: child %d hangs\n", i);
			failures++;
		} else {
			check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ends well");
		}
	}
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	printf("%d failures\n", failures);
	return failures != 0;
}
