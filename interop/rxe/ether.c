// Ethernet over Unix sockets, for a virtual machine where no tap device may be had.
//
//   ether NEAR:FAR [NEAR:FAR ...] -- COMMAND...
//
// Each NEAR:FAR are the two ends of a veth. NEAR is the host's; what leaves it is passed on as datagrams over a Unix socket, one a frame,
// and the datagrams that come back arrive at it. COMMAND, which takes this process's place, has the other ends of the sockets as
// descriptors 10, 11 and so on, as QEMU's `-netdev socket,fd=10` wants them. Takes no more rights than those over the network
// that it runs in, as whoever makes a network namespace of a user namespace has them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

// Frames of up to 9000 bytes and what the kernel puts in front of each. As many as wait in the queue of a tap device.
enum { MOST = 8, FIRST_FD = 10, SLOT = 16384, SLOTS = 1024, BLOCK = 65536 };

static struct cable {
	int packets;
	int machine;
	uint8_t *ring;
	unsigned next;
	// The machine takes no more for now.
	int full;
} cables[MOST];

static void check(int done, const char *what, const char *name)
{
	if (done)
		return;
	fprintf(stderr, "ether: %s of %s: %s\n", what, name, strerror(errno));
	exit(1);
}

// What leaves is to be whole: no packet without its checksum, and none that hardware would cut into several.
static void leave_nothing_to_hardware(int socket, const char *name)
{
	struct ethtool_value value = { .cmd = ETHTOOL_STXCSUM, .data = 0 };
	struct ifreq request = { .ifr_data = (void *)&value };

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	check(ioctl(socket, SIOCETHTOOL, &request) == 0, "checksums", name);
}

// A socket that sees each frame that arrives at an interface, through memory that the kernel fills: an ordinary socket's buffer
// is too small for a burst.
static void open_packets(struct cable *cable, const char *near, const char *far)
{
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL) };
	struct tpacket_req ring = {
		.tp_block_size = BLOCK, .tp_block_nr = SLOTS / (BLOCK / SLOT), .tp_frame_size = SLOT, .tp_frame_nr = SLOTS
	};
	int version = TPACKET_V2, yes = 1;

	address.sll_ifindex = if_nametoindex(far);
	check(address.sll_ifindex, "the name", far);
	cable->packets = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	check(cable->packets >= 0, "a packet socket", far);
	leave_nothing_to_hardware(cable->packets, near);
	check(!setsockopt(cable->packets, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)), "the version", far);
	check(!setsockopt(cable->packets, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes)), "direction", far);
	check(!setsockopt(cable->packets, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)), "a ring", far);
	cable->ring = mmap(NULL, (size_t)SLOT * SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED, cable->packets, 0);
	check(cable->ring != MAP_FAILED, "the memory of a ring", far);
	check(!bind(cable->packets, (struct sockaddr *)&address, sizeof(address)), "binding", far);
}

static void to_machine(struct cable *cable)
{
	cable->full = 0;
	for (;;) {
		struct tpacket2_hdr *frame = (void *)(cable->ring + (size_t)cable->next * SLOT);

		if (!(__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
			return;
		// One that did not fit is lost.
		if (frame->tp_snaplen == frame->tp_len &&
		    send(cable->machine, (uint8_t *)frame + frame->tp_mac, frame->tp_len, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
			cable->full = 1;
			return;
		}
		__atomic_store_n(&frame->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
		cable->next = (cable->next + 1) % SLOTS;
	}
}

static void from_machine(struct cable *cable)
{
	static uint8_t frame[1 << 17];
	ssize_t length;

	// What the network does not take is lost, as on any other.
	while ((length = recv(cable->machine, frame, sizeof(frame), MSG_DONTWAIT)) > 0)
		if (send(cable->packets, frame, length, 0) < 0 && (errno == EBADF || errno == ENXIO))
			exit(1);
}

static void carry(int count)
{
	struct pollfd wanted[2 * MOST];

	for (;;) {
		for (int at = 0; at < count; at++) {
			struct cable *cable = &cables[at];

			wanted[2 * at] = (struct pollfd){ .fd = cable->full ? -1 : cable->packets, .events = POLLIN };
			wanted[2 * at + 1] = (struct pollfd){ .fd = cable->machine, .events = POLLIN | (cable->full ? POLLOUT : 0) };
		}
		if (poll(wanted, 2 * count, -1) < 0 && errno != EINTR)
			exit(1);
		for (int at = 0; at < count; at++) {
			to_machine(&cables[at]);
			from_machine(&cables[at]);
		}
	}
}

int main(int argc, char **argv)
{
	int count = 0, at = 1;
	pid_t parent = getpid();

	for (; at < argc && strcmp(argv[at], "--"); at++, count++) {
		char *far = strchr(argv[at], ':');
		int ends[2];

		if (!far || count == MOST) {
			fprintf(stderr, "ether: %s: up to %d pairs NEAR:FAR\n", argv[at], MOST);
			return 2;
		}
		*far++ = 0;
		open_packets(&cables[count], argv[at], far);
		check(!socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), "a Unix socket", far);
		cables[count].machine = ends[0];
		check(dup2(ends[1], FIRST_FD + count) >= 0, "a descriptor", far);
		close(ends[1]);
	}
	if (at + 1 >= argc) {
		fprintf(stderr, "ether NEAR:FAR [NEAR:FAR ...] -- COMMAND...\n");
		return 2;
	}
	pid_t child = fork();

	check(child >= 0, "a process", "ether");
	if (child == 0) {
		// It ends with the command.
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			return 0;
		for (int end = 0; end < count; end++)
			close(FIRST_FD + end);
		carry(count);
	}
	execvp(argv[at + 1], argv + at + 1);
	perror(argv[at + 1]);
	return 127;
}
