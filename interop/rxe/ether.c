// Ethernet over Unix sockets, for a virtual machine on a host that permits no tap devices.
//
//   ether NEAR:FAR [NEAR:FAR ...] -- COMMAND...
//
// Each NEAR:FAR names the two ends of a veth. NEAR is the host's end: each frame that leaves it is forwarded as a datagram
// over a Unix socket, and each datagram that returns arrives at it as a frame. COMMAND replaces this process and inherits the
// other ends of the sockets as descriptors 10, 11 and so on, as QEMU's `-netdev socket,fd=10` expects. Needs privileges
// only over its own network namespace, which the creator of a user namespace has.
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

// Frames of up to 9000 bytes and the header that the kernel adds to each. As many slots as the queue of a tap
// device.
enum { MOST = 8, FIRST_FD = 10, SLOT = 16384, SLOTS = 1024, BLOCK = 65536 };

static struct cable {
	int packets;
	int machine;
	uint8_t *ring;
	unsigned next;
 // The machine's socket is full.
	int full;
} cables[MOST];

static void check(int done, const char *what, const char *name)
{
	if (done)
		return;
	fprintf(stderr, "ether: %s of %s: %s\n", what, name, strerror(errno));
	exit(1);
}

// Frames must leave complete: with their checksums, and not segmented later by hardware.
static void leave_nothing_to_hardware(int socket, const char *name)
{
	struct ethtool_value value = { .cmd = ETHTOOL_STXCSUM, .data = 0 };
	struct ifreq request = { .ifr_data = (void *)&value };

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	check(ioctl(socket, SIOCETHTOOL, &request) == 0, "checksums", name);
}

// A socket that receives each frame that arrives at an interface, through a ring that the kernel fills: an ordinary
// socket buffer is too small for a burst.
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
	check(cable->ring != MAP_FAILED, "ring memory", far);
	check(!bind(cable->packets, (struct sockaddr *)&address, sizeof(address)), "binding", far);
}

static void to_machine(struct cable *cable)
{
	cable->full = 0;
	for (;;) {
		struct tpacket2_hdr *frame = (void *)(cable->ring + (size_t)cable->next * SLOT);

		if (!(__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
			return;
  // A frame that did not fit is dropped.
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

 // Frames that the network does not accept are dropped, as on any network.
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
  // Exits when the command exits.
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
