"""Stands in for systemd: starts a service, holds the descriptors that it stores (sd_notify FDSTORE, FDSTOREREMOVE), and starts it
again with them (LISTEN_FDS) when it was killed. Ends with the service's exit code when the service exits.

supervisor.py NOTIFY_SOCKET PROGRAM [ARGUMENT...]
"""
import array
import os
import signal
import socket
import sys

path, command = sys.argv[1], sys.argv[2:]
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(path)
stored = []
child = 0


def start():
    pid = os.fork()
    if pid:
        return pid
    # Out of the way first, then to 3, 4 and so on.
    high = [os.dup(fd) for _, fd in stored]
    base = max(high, default=3) + 100
    moved = [os.dup2(fd, base + at) for at, fd in enumerate(high)]
    for at, fd in enumerate(moved):
        os.dup2(fd, 3 + at, inheritable=True)
    os.closerange(3 + len(moved), 4096)
    names = ":".join(name for name, _ in stored)
    listen = {"LISTEN_FDS": str(len(stored)), "LISTEN_FDNAMES": names, "LISTEN_PID": str(os.getpid())}
    os.execve(command[0], command, {**os.environ, "NOTIFY_SOCKET": path, **(listen if stored else {})})


def hear():
    message, controls, _, _ = notify.recvmsg(4096, socket.CMSG_SPACE(64 * 4))
    fds = array.array("i")
    for _, _, data in controls:
        fds.frombytes(data)
    said = dict(line.split("=", 1) for line in message.decode().splitlines() if "=" in line)
    if said.get("READY") == "1":
        print("the service is ready", flush=True)
    if said.get("FDSTORE") == "1":
        stored.extend((said["FDNAME"], fd) for fd in fds)
    if said.get("FDSTOREREMOVE") == "1":
        for entry in [entry for entry in stored if entry[0] == said["FDNAME"]]:
            stored.remove(entry)
            os.close(entry[1])


def ended(*_):
    """The service has ended: the blocking receive below returns."""
    raise InterruptedError


signal.signal(signal.SIGCHLD, ended)
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
while True:
    child = start()
    try:
        while True:
            hear()
    except InterruptedError:
        _, status = os.waitpid(child, 0)
    # What it said before it ended.
    notify.setblocking(False)
    try:
        while True:
            hear()
    except BlockingIOError:
        notify.setblocking(True)
    if os.WIFEXITED(status):
        print(f"the service ended; {len(stored)} descriptors are left", flush=True)
        sys.exit(os.WEXITSTATUS(status))
    print(f"the service was killed; {len(stored)} descriptors are held", flush=True)
