/* Keeps a file of counters open, as monitoring programs do: it is read anew from the beginning. Streams (fgets) are not: the C
 * library reads for them without a call that could be seen. */
#include "common.h"
#include <fcntl.h>

static int file;

static long by_seeking(void) {
	char text[32] = "";
	check(lseek(file, 0, SEEK_SET) == 0 && read(file, text, sizeof text - 1) > 0, "read");
	return atol(text);
}

static long by_place(void) {
	char text[32] = "";
	check(pread(file, text, sizeof text - 1, 0) > 0, "pread");
	return atol(text);
}

int main(void) {
	static char buffer[64];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	char path[200];
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/counters/port_xmit_packets", ibv_get_device_name(context->device));
	file = open(path, O_RDONLY);
	check(file >= 0, path);
	long (*const ways[])(void) = {by_seeking, by_place};
	const char *const names[] = {"read anew", "read anew at a place"};
	for (int i = 0; i < 2 && failures == 0; i++) {
		long before = ways[i]();
		check(before == ways[i](), "nothing was sent meanwhile");
		REFUSED(post_write(a, mr, mr, 8), 0);
		check(wait_for(cq) == IBV_WC_SUCCESS, "a WRITE");
		/* The WRITE, and its acknowledgement. */
		check(ways[i]() == before + 2, names[i]);
	}
	printf("%d failures\n", failures);
	return failures != 0;
}
