/* A clock that can fail, which never happens, and which rnic does not expect: so rnic meets a bug of its own when the program
 * wants it. To be included after common.h, with _GNU_SOURCE. */
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

/* Whether the clock fails the next time that this thread reads it, or rnic's own thread does. */
static __thread int fails_here;
static int fails_in_thread;

int clock_gettime(clockid_t clock, struct timespec *now) {
	char name[16] = "";
	int fails = fails_here;
	fails_here = 0;
	if (__atomic_load_n(&fails_in_thread, __ATOMIC_RELAXED)) {
		pthread_getname_np(pthread_self(), name, sizeof name);
		if (strcmp(name, "rnic") == 0) {
			fails |= __atomic_exchange_n(&fails_in_thread, 0, __ATOMIC_RELAXED);
		}
	}
	if (fails) {
		errno = EINVAL;
		return -1;
	}
	return syscall(SYS_clock_gettime, clock, now);
}

/* A call that meets the bug. While rnic's own thread has the device, the call leaves its work to it without a look at
 * the clock: then it is repeated, slowly, because nobody polls the completions of what was left. */
#define MEETS_BUG(call)                                                                            \
	do {                                                                                       \
		int got;                                                                           \
		fails_here = 1;                                                                    \
		do {                                                                               \
			errno = 0;                                                                 \
			got = (call);                                                              \
		} while (fails_here && usleep(1000) == 0);                                              \
		check(got == EIO || (got < 0 && errno == EIO), #call);                             \
	} while (0)
