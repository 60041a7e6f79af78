/*
 * OpenSHMEM: processing elements write to and read from each other's symmetric memory, count together with atomics, signal by
 * a flag that is polled, lock, and reduce. Element 0 prints how many of all their checks failed.
 */
#include <shmem.h>
#include <stdio.h>

#define LONGS (1 << 19)

static long sync_sum[SHMEM_REDUCE_SYNC_SIZE], sync_more[SHMEM_REDUCE_SYNC_SIZE];
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static long failures, all_failures, mine, sum, flag, counter, word, guarded, lock;

static void check(int holds, const char *what, int me)
{
    if (!holds) {
        failures++;
        fprintf(stderr, "element %d: %s\n", me, what);
    }
}

static long value(int element, long index)
{
    return element * 1000003L + index;
}

/* Whether a block is that of an element. */
static int is_of(const long *block, int element)
{
    for (long i = 0; i < LONGS; i++)
        if (block[i] != value(element, i))
            return 0;
    return 1;
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), all = shmem_n_pes();
    int next = (me + 1) % all, before = (me + all - 1) % all;
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
        sync_sum[i] = sync_more[i] = SHMEM_SYNC_VALUE;
    long *from = shmem_malloc(LONGS * sizeof(long)), *to = shmem_malloc(LONGS * sizeof(long));
    for (long i = 0; i < LONGS; i++) {
        from[i] = value(me, i);
        to[i] = -1;
    }
    shmem_barrier_all();

    /* The fence keeps the flag behind the data. */
    shmem_long_put(to, from, LONGS, next);
    shmem_fence();
    shmem_long_p(&flag, 1, next);
    shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
    check(is_of(to, before), "the block that was put", me);
    shmem_barrier_all();

    int other = (me + 2) % all;
    for (long i = 0; i < LONGS; i++)
        to[i] = -1;
    shmem_long_get(to, from, LONGS, other);
    check(is_of(to, other), "the block that was got", me);

    for (int i = 0; i < 500; i++)
        shmem_long_atomic_inc(&counter, 0);
    long seen = shmem_long_atomic_fetch_add(&counter, 1, 0);
    check(seen >= 500 && seen < 501L * all, "the counter while it counts", me);
    shmem_barrier_all();
    check(shmem_long_g(&counter, 0) == 501L * all, "the counter at the end", me);

    /* Exactly one of those that compare and swap finds the word free. */
    long found = shmem_long_atomic_compare_swap(&word, 0, me + 1, all - 1);
    mine = found == 0;
    shmem_barrier_all();
    shmem_long_sum_to_all(&sum, &mine, 1, 0, 0, all, work, sync_sum);
    check(sum == 1, "one winner", me);

    for (int i = 0; i < 20; i++) {
        shmem_set_lock(&lock);
        long now = shmem_long_g(&guarded, 0);
        shmem_long_p(&guarded, now + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    check(shmem_long_g(&guarded, 0) == 20L * all, "what a lock guards", me);

    shmem_barrier_all();
    shmem_long_sum_to_all(&all_failures, &failures, 1, 0, 0, all, work, sync_more);
    if (me == 0)
        printf("%d ranks, %ld failures\n", all, all_failures);
    shmem_finalize();
    return 0;
}
