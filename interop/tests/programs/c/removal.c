/* A device fails while identifiers of the connection manager are bound to it: each hears that it was removed, and a thread
 * that waits for an event wakes. */
#define _GNU_SOURCE
#include "common.h"
#include "clock.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>

enum { CREATE = 0, BIND = 20, GET_EVENT = 12, DEVICE_REMOVAL = 11, TCP = 0x0106 };

struct header {
	uint32_t command;
	uint16_t in, out;
};

static uint32_t create(int channel, uint64_t uid) {
	uint32_t id = 0;
	struct {
		struct header header;
		uint64_t uid, response;
		uint16_t space;
		uint8_t type, rest[5];
	} command = {{CREATE, 24, 4}, uid, (uintptr_t)&id, TCP, IBV_QPT_RC, {0}};
	check(write(channel, &command, sizeof command) == sizeof command, "an identifier");
	return id;
}

/* Binds an identifier to an address; 0 stands for all. */
static void bind_to(int channel, uint32_t id, in_addr_t address) {
	struct {
		struct header header;
		uint32_t id;
		uint16_t size, rest;
		struct sockaddr_storage address;
	} command = {{BIND, 136, 0}, id, sizeof(struct sockaddr_in), 0, {0}};
	*(struct sockaddr_in *)&command.address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {address}};
	check(write(channel, &command, sizeof command) == sizeof command, "a bound identifier");
}

/* Waits for an event: the uid of its identifier, or 0 for another event. */
static uint64_t removed(int channel) {
	struct {
		uint64_t uid;
		uint32_t id, event, status, rest[79];
	} event = {0};
	struct {
		struct header header;
		uint64_t response;
	} command = {{GET_EVENT, 8, sizeof event}, (uintptr_t)&event};
	check(write(channel, &command, sizeof command) == sizeof command, "an event");
	return event.event == DEVICE_REMOVAL && event.status == 0 ? event.uid : 0;
}

static void *wait_for_removal(void *channel) {
	return (void *)(uintptr_t)removed(*(int *)channel);
}

int main(void) {
	int channel = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	int other = open("/dev/infiniband/rdma_cm", O_RDWR | O_CLOEXEC);
	struct ibv_context *context = open_first();
	union ibv_gid gid;
	check(ibv_query_gid(context, 1, 0, &gid) == 0, "the GID");
	in_addr_t address;
	memcpy(&address, gid.raw + 12, 4);
	bind_to(channel, create(channel, 1), address);
	bind_to(channel, create(channel, 2), address);
	/* One at all addresses belongs to no device, nor does one that is not bound. */
	bind_to(channel, create(channel, 3), 0);
	create(channel, 4);
	bind_to(other, create(other, 5), address);

	pthread_t thread;
	pthread_create(&thread, NULL, wait_for_removal, &other);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp *qp = create_rc(pd, ibv_create_cq(context, 16, NULL, NULL, 0));
	to_init(qp);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	MEETS_BUG(ibv_modify_qp(qp, &attr, IBV_QP_STATE));

	void *uid = NULL;
	struct timespec limit;
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &limit);
	limit.tv_sec += 30;
	check(pthread_timedjoin_np(thread, &uid, &limit) == 0 && uid == (void *)5, "the one that waits is told");
	for (uint64_t number = 1; number <= 2; number++) {
		struct pollfd fd = {.fd = channel, .events = POLLIN};
		check(poll(&fd, 1, 30000) == 1 && removed(channel) == number, "each is told");
	}
	struct pollfd fd = {.fd = channel, .events = POLLIN};
	check(poll(&fd, 1, 0) == 0, "the others are not");
	printf("%d failures\n", failures);
	return failures != 0;
}
