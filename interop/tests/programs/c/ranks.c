/* MPI ranks that reduce, exchange and access one another's memory, and verify the results: `ranks ROUNDS`. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of the longest message: 1 MiB of int64, above every threshold between eager and rendezvous protocols. */
#define LONGEST (1 << 17)
/* Additions of each rank to the counters of each rank. */
#define ADDITIONS 50

static int rank, ranks, failures;

static void check(int holds, const char *what, int round) {
	if (!holds) {
		failures++;
		fprintf(stderr, "rank %d, round %d: %s\n", rank, round, what);
	}
}

static long long *numbers(size_t count) {
	long long *all = calloc(count, sizeof *all);

	if (!all)
		MPI_Abort(MPI_COMM_WORLD, 2);
	return all;
}

/* A number that encodes the sender, the receiver, the position and the round. */
static long long stamp(int from, int to, int at, int round) {
	return ((long long)round << 48) | ((long long)from << 40) | ((long long)to << 32) | at;
}

static void reduce(int count, int round) {
	long long *own = numbers(count), *sum = numbers(count);
	int at, wrong = 0, all = ranks * (ranks + 1) / 2;

	for (at = 0; at < count; at++)
		own[at] = (long long)(rank + 1) * (at + round);
	MPI_Allreduce(own, sum, count, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (at = 0; at < count; at++)
		wrong += sum[at] != (long long)all * (at + round);
	check(!wrong, "allreduce", round);
	free(own);
	free(sum);
}

static void exchange(int count, int round) {
	long long *out = numbers((size_t)count * ranks), *in = numbers((size_t)count * ranks);
	int peer, at, wrong = 0;

	for (peer = 0; peer < ranks; peer++)
		for (at = 0; at < count; at++)
			out[peer * count + at] = stamp(rank, peer, at, round);
	MPI_Alltoall(out, count, MPI_LONG_LONG, in, count, MPI_LONG_LONG, MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++)
		for (at = 0; at < count; at++)
			wrong += in[peer * count + at] != stamp(peer, rank, at, round);
	check(!wrong, "alltoall", round);
	free(out);
	free(in);
}

/* The window of each rank has a section for each rank that writes to it. */
static void put_and_get(MPI_Win window, long long *memory, int count, int round) {
	long long *out = numbers(count), *in = numbers(count);
	int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, at, wrong = 0;

	for (at = 0; at < count; at++)
		out[at] = stamp(rank, right, at, round);
	MPI_Win_fence(0, window);
	MPI_Put(out, count, MPI_LONG_LONG, right, (MPI_Aint)rank * LONGEST, count, MPI_LONG_LONG, window);
	MPI_Win_fence(0, window);
	for (at = 0; at < count; at++)
		wrong += memory[(size_t)left * LONGEST + at] != stamp(left, rank, at, round);
	check(!wrong, "put", round);
	MPI_Get(in, count, MPI_LONG_LONG, right, (MPI_Aint)rank * LONGEST, count, MPI_LONG_LONG, window);
	MPI_Win_fence(0, window);
	check(!memcmp(in, out, count * sizeof *in), "get", round);
	free(out);
	free(in);
}

/* All ranks add to all counters at once, and each addition fetches the value before it. */
static void accumulate(int round) {
	long long *counters, one = 1, before, last;
	int peer, at;
	MPI_Win window;

	MPI_Win_allocate(2 * sizeof *counters, sizeof *counters, MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &window);
	MPI_Win_lock_all(0, window);
	counters[0] = counters[1] = 0;
	MPI_Win_sync(window);
	MPI_Barrier(MPI_COMM_WORLD);
	for (peer = 0; peer < ranks; peer++) {
		for (at = 0, last = -1; at < ADDITIONS; at++) {
			MPI_Accumulate(&one, 1, MPI_LONG_LONG, peer, 0, 1, MPI_LONG_LONG, MPI_SUM, window);
			MPI_Fetch_and_op(&one, &before, MPI_LONG_LONG, peer, 1, MPI_SUM, window);
			MPI_Win_flush(peer, window);
			check(before > last && before < ranks * ADDITIONS, "fetch and add", round);
			last = before;
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_sync(window);
	check(counters[0] == ranks * ADDITIONS, "accumulate", round);
	check(counters[1] == ranks * ADDITIONS, "what fetch and add left", round);
	MPI_Win_unlock_all(window);
	MPI_Win_free(&window);
}

int main(int argc, char **argv) {
	static const int counts[] = { 1, 100, 3000, LONGEST };
	int rounds = argc > 1 ? atoi(argv[1]) : 1, round, size, all;
	long long *memory;
	MPI_Win window;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Win_allocate((MPI_Aint)ranks * LONGEST * sizeof *memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD,
			 &memory, &window);
	for (round = 0; round < rounds; round++) {
		for (size = 0; size < 4; size++) {
			reduce(counts[size], round);
			exchange(counts[size] / ranks + 1, round);
			put_and_get(window, memory, counts[size], round);
		}
		accumulate(round);
	}
	MPI_Win_free(&window);
	MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %d failures\n", ranks, all);
	MPI_Finalize();
	return all != 0;
}
