/* A TCP program: the server returns what it receives, and the client compares. `no TCP` is printed if the kernel knows
 * nothing of the connection. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHUNK 8192
#define CHUNKS 128

static void check(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static void receive(int s, unsigned char *to, size_t len)
{
	while (len > 0) {
		ssize_t got = recv(s, to, len, 0);
		check(got > 0, "recv");
		to += got;
		len -= got;
	}
}

static void deliver(int s, const unsigned char *from, size_t len)
{
	while (len > 0) {
		ssize_t put = send(s, from, len, 0);
		check(put > 0, "send");
		from += put;
		len -= put;
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = {.sin_family = AF_INET};
	unsigned char out[CHUNK], in[CHUNK];
	int s = socket(AF_INET, SOCK_STREAM, 0);

	check(argc == 4 && s >= 0, "socket");
	inet_pton(AF_INET, argv[2], &at.sin_addr);
	at.sin_port = htons(atoi(argv[3]));
	int serves = !strcmp(argv[1], "server");
	if (serves) {
		check(!bind(s, (struct sockaddr *)&at, sizeof(at)) && !listen(s, 1), "listen");
		s = accept(s, NULL, NULL);
		check(s >= 0, "accept");
	} else {
		check(!connect(s, (struct sockaddr *)&at, sizeof(at)), "connect");
	}
	for (int i = 0; i < CHUNKS; i++) {
		if (serves) {
			receive(s, in, CHUNK);
			deliver(s, in, CHUNK);
		} else {
			memset(out, i, CHUNK);
			deliver(s, out, CHUNK);
			receive(s, in, CHUNK);
			check(!memcmp(in, out, CHUNK), "other bytes");
		}
	}
	/* The system call itself: librspreload answers the function. */
	struct sockaddr_in peer;
	socklen_t len = sizeof(peer);
	if (syscall(SYS_getpeername, s, &peer, &len))
		puts("no TCP");
	shutdown(s, SHUT_RDWR);
	close(s);
	return 0;
}
