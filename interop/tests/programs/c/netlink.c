/* Asks the kernel about RDMA devices by netlink, with each call that sends, and from a copy of the descriptor and a child.
 * Other sockets are left alone meanwhile. */
#include "common.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

static struct nlmsghdr request = {
	.nlmsg_len = sizeof request,
	.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET),
	.nlmsg_flags = NLM_F_REQUEST,
};
static struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};

static ssize_t by_send(int file) { return send(file, &request, sizeof request, 0); }
static ssize_t by_write(int file) { return write(file, &request, sizeof request); }
static ssize_t by_sendto(int file) {
	return sendto(file, &request, sizeof request, 0, (struct sockaddr *)&kernel, sizeof kernel);
}
static ssize_t by_sendmsg(int file) {
	struct iovec pieces[2] = {{&request, 6}, {(char *)&request + 6, sizeof request - 6}};
	struct msghdr message = {.msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = pieces, .msg_iovlen = 2};
	return sendmsg(file, &message, 0);
}

static void ask(int file, ssize_t (*way)(int), const char *name) {
	char room[256];
	struct nlmsghdr *answer = (struct nlmsghdr *)room;
	struct pollfd ready = {.fd = file, .events = POLLIN};
	request.nlmsg_seq++;
	check(way(file) == (ssize_t)sizeof request, name);
	if (poll(&ready, 1, 5000) != 1) {
		check(0, "an answer");
		return;
	}
	ssize_t got = recv(file, room, sizeof room, 0);
	check(got > (ssize_t)sizeof *answer && answer->nlmsg_len == got && answer->nlmsg_type == request.nlmsg_type &&
		      answer->nlmsg_seq == request.nlmsg_seq,
	      name);
}

static void others(void) {
	struct sockaddr_in nobody = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("127.90.5.250"), .sin_port = htons(9)};
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0), file = open("/dev/null", O_RDONLY);
	check(connect(datagrams, (struct sockaddr *)&nobody, sizeof nobody) == 0, "connect");
	check(send(datagrams, "a", 1, 0) == 1, "a datagram to nobody");
	check(send(datagrams, "b", 1, 0) == -1 && errno == ECONNREFUSED, "the next one is refused");
	check(write(file, "a", 1) == -1 && errno == EBADF, "a file for reading");
	check(send(file, "a", 1, 0) == -1 && errno == ENOTSOCK, "a file is no socket");
}

int main(void) {
	ssize_t (*const ways[])(int) = {by_send, by_write, by_sendto, by_sendmsg};
	const char *const names[] = {"send", "write", "sendto", "sendmsg"};
	int file = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
	check(file >= 0, "a socket");
	for (int i = 0; i < 4; i++)
		ask(file, ways[i], names[i]);
	ask(dup(file), by_write, "a copy");
	check(send(file, &request, 3, 0) == -1 && errno == EINVAL, "too short");
	struct sockaddr_nl other = {.nl_family = AF_NETLINK, .nl_pid = 0x7ffffff1};
	check(sendto(file, &request, sizeof request, 0, (struct sockaddr *)&other, sizeof other) == -1 && errno == ECONNREFUSED,
	      "another program");
	others();
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		ask(file, by_sendmsg, "a child");
		fflush(stdout);
		_exit(failures != 0);
	}
	int status;
	check(waitpid(child, &status, 0) == child && status == 0, "the child");
	check(close(file) == 0, "close");
	check(by_send(file) == -1 && errno == EBADF, "closed");
	/* A tool that reads nothing is not waited for. */
	file = socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA);
	int sent = 0;
	while (sent < 100000 && by_send(file) > 0)
		sent++;
	check(sent > 0 && sent < 100000 && errno == ENOBUFS, "no room");
	printf("%d failures\n", failures);
	return failures != 0;
}
