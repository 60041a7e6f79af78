// Runs commands in the guest, one per connection.
//
// A connection starts with a line, a command for the shell. The rest of the input is passed to the command; its
// output and its errors are sent back. When the command exits, a zero byte and its exit status as a decimal number
// follow (128 + N after signal N), and the connection is closed. If the peer closes the connection first, the
// command and all its children are killed.
#define _GNU_SOURCE
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void serve(int connection)
{
	char line[65536];
	size_t length = 0;

 // One byte at a time: the input after the line belongs to the command.
	while (read(connection, line + length, 1) == 1 && line[length] != '\n')
		if (++length == sizeof(line))
			_exit(1);
	line[length] = 0;

	pid_t child = fork();
	if (child == 0) {
		setsid();
		for (int stream = 0; stream < 3; stream++)
			dup2(connection, stream);
		close(connection);
		signal(SIGCHLD, SIG_DFL);
		execl("/bin/sh", "sh", "-c", line, (char *)NULL);
		_exit(127);
	}
	struct pollfd wanted[2] = {
  // Closed by the peer in both directions; POLLHUP is always reported.
		{ .fd = connection, .events = 0 },
		{ .fd = syscall(SYS_pidfd_open, child, 0), .events = POLLIN },
	};
	int status = 0;

	for (;;) {
		poll(wanted, 2, -1);
		if (wanted[0].revents)
			kill(-child, SIGKILL);
		if (wanted[1].revents || wanted[0].revents)
			break;
	}
	waitpid(child, &status, 0);
	kill(-child, SIGKILL);
	dprintf(connection, "%c%d", 0, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	shutdown(connection, SHUT_RDWR);
	_exit(0);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 7) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int yes = 1;

	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 64)) {
		perror("agent");
		return 1;
	}
	for (;;) {
		int connection = accept(listener, NULL, NULL);
		if (connection < 0)
			continue;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (fork() == 0) {
			close(listener);
			serve(connection);
		}
		close(connection);
	}
}
