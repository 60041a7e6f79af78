/* Two processes, each with its own device: one writes to the other with a key that does not exist.
 * Usage: apart FOLDER [quiet]
 *
 * Creates FOLDER/ready once the processes are connected, and continues when FOLDER/go exists. With `quiet` the
 * responder prints no explanations. */
#include "common.h"

struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[4096];

static struct ibv_qp *make(struct end *own) {
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *qp = create_rc(pd, cq);
	check(mr && qp, "a queue pair");
	check(ibv_query_gid(context, 1, 0, &own->gid) == 0, "the GID");
	own->qpn = qp->qp_num;
	own->rkey = mr->rkey;
	own->addr = (uintptr_t)buffer;
	return qp;
}

static int get(int fd, void *to, size_t size) {
	return read(fd, to, size) == (ssize_t)size;
}

static int put(int fd, const void *from, size_t size) {
	return write(fd, from, size) == (ssize_t)size;
}

static int respond(int in, int out) {
	struct end own, peer;
	char byte = 0;
	struct ibv_qp *qp = make(&own);
	check(put(out, &own, sizeof own) && get(in, &peer, sizeof peer), "the requester");
	join(qp, peer.qpn, peer.gid);
	check(put(out, &byte, 1), "the requester");
	while (get(in, &byte, 1)) {
	}
	return failures != 0;
}

int main(int argc, char **argv) {
	int up[2], down[2];
	check(argc > 1 && pipe(up) == 0 && pipe(down) == 0, "pipes");
	pid_t child = fork();
	if (child == 0) {
		close(down[1]);
		close(up[0]);
		if (argc > 2) {
			setenv("RNIC_EXPLAIN", "0", 1);
		}
		_exit(respond(down[0], up[1]));
	}
	close(down[0]);
	close(up[1]);
	struct end own, peer;
	char byte, name[4096];
	struct ibv_qp *qp = make(&own);
	check(get(up[0], &peer, sizeof peer) && put(down[1], &own, sizeof own), "the responder");
	join(qp, peer.qpn, peer.gid);
	check(get(up[0], &byte, 1), "the responder");
	snprintf(name, sizeof name, "%s/ready", argv[1]);
	fclose(fopen(name, "w"));
	snprintf(name, sizeof name, "%s/go", argv[1]);
	for (int i = 0; i < 6000 && access(name, F_OK) != 0; i++) {
		usleep(10000);
	}
	struct ibv_mr target = {.addr = (void *)(uintptr_t)peer.addr, .rkey = peer.rkey ^ 0x5a5a00};
	check(post_write(qp, mr, &target, 64) == 0, "ibv_post_send");
	check(wait_for(cq) == IBV_WC_REM_ACCESS_ERR, "REM_ACCESS_ERR");
	close(down[1]);
	int status = 0;
	check(waitpid(child, &status, 0) == child && status == 0, "the responder");
	printf("%d failures\n", failures);
	return failures != 0;
}
