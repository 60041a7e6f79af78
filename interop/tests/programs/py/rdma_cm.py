"""The device of the connection manager, as librdmacm uses it: commands are written to it, and answered in memory.

usage: rdma_cm.py TEST [ARGUMENT]...
"""

import ctypes
import errno
import fcntl
import itertools
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import time

CREATE, DESTROY, BIND_IP, RESOLVE_IP, RESOLVE_ROUTE, QUERY_ROUTE, CONNECT, LISTEN, ACCEPT, REJECT = range(10)
DISCONNECT, INIT_QP_ATTR, GET_EVENT, GET_OPTION, SET_OPTION, NOTIFY, JOIN_IP, LEAVE, MIGRATE, QUERY = range(10, 20)
BIND, RESOLVE, JOIN, RESOLVE_IB, WRITE_EVENT = range(20, 25)
TCP, UDP, IB = 0x0106, 0x0111, 0x013F
ADDR_RESOLVED, ROUTE_RESOLVED, REQUEST, RESPONSE, REJECTED, ESTABLISHED, DISCONNECTED = 0, 2, 4, 5, 8, 9, 10
TIMEWAIT_EXIT, USER = 15, 18


def name(address, port):
    return struct.pack("=H2s4s8x", socket.AF_INET, port.to_bytes(2, "big"), socket.inet_aton(address))


# No two connections have the same queue pair, even here, where none exists: that would mean that the older one is gone.
queue_pairs = itertools.count(17)


def param(valid=1, private=b"", srq=0, flow=0):
    head = struct.pack("=II256s", next(queue_pairs), 0, private)
    return head + bytes([len(private), srq, 1, 1, flow, 7, 7, valid])


class Event:
    def __init__(self, answer):
        self.uid, self.id, self.kind, self.status = struct.unpack_from("=QIIi", answer)
        self.param = answer[20:324]
        self.private = self.param[8:8 + self.param[264]]
        self.srq, self.flow = self.param[265], self.param[268]


class Channel:
    def __init__(self, flags=0):
        self.fd = os.open("/dev/infiniband/rdma_cm", os.O_RDWR | os.O_CLOEXEC | flags)

    def call(self, command, payload, room=0, fd=None):
        """Writes a command; the answer's address is its first number, if there is room for one."""
        answer = ctypes.create_string_buffer(room)
        if room:
            payload = struct.pack("=Q", ctypes.addressof(answer)) + payload
        text = struct.pack("=IHH", command, len(payload), room) + payload
        assert os.write(self.fd if fd is None else fd, text) == len(text)
        return answer.raw

    def number(self, command, payload):
        return struct.unpack("=I", self.call(command, payload, 4))[0]

    def create(self, uid, space=TCP, kind=2):
        answer = ctypes.c_uint32()
        payload = struct.pack("=QQHB5x", uid, ctypes.addressof(answer), space, kind)
        os.write(self.fd, struct.pack("=IHH", CREATE, len(payload), 4) + payload)
        return answer.value

    def destroy(self, id):
        return self.number(DESTROY, struct.pack("=II", id, 0))

    def bind(self, id, address, port=0):
        self.call(BIND, struct.pack("=IHH128s", id, 16, 0, name(address, port)))

    def resolve(self, id, address, port):
        self.call(RESOLVE, struct.pack("=IIHHI128s128s", id, 2000, 0, 16, 0, b"", name(address, port)))

    def route(self, id):
        self.call(RESOLVE_ROUTE, struct.pack("=II", id, 2000))

    def listen(self, id, backlog=0):
        self.call(LISTEN, struct.pack("=II", id, backlog))

    def connect(self, id, private=b"", **queues):
        self.call(CONNECT, param(private=private, **queues) + struct.pack("=IIII", id, 0, 0, 0))

    def accept(self, id, uid, valid=1, private=b"", **queues):
        payload = struct.pack("=Q", uid) + param(valid, private, **queues) + struct.pack("=IIII", id, 0, 0, 0)
        self.call(ACCEPT, payload)

    def disconnect(self, id):
        self.call(DISCONNECT, struct.pack("=I", id))

    def event(self, kind=None):
        event = Event(self.call(GET_EVENT, b"", 336))
        assert kind is None or event.kind == kind, (event.kind, event.status, kind)
        return event

    def ready(self, seconds=0):
        return bool(select.select([self.fd], [], [], seconds)[0])

    def close(self):
        os.close(self.fd)


def fails(number, act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        assert error.errno == number, (error, errno.errorcode[number])
        return
    raise AssertionError(f"no {errno.errorcode[number]}: {act} {arguments}")


def connected(here, there, listener, address, port):
    """Connects an identifier of `here` to a listener of `there`: both identifiers."""
    active = here.create(1)
    here.resolve(active, address, port)
    here.event(ADDR_RESOLVED)
    here.route(active)
    here.event(ROUTE_RESOLVED)
    # A shared receive queue, and flow control between the ends: one has one of them, and the other the other.
    here.connect(active, b"from here", srq=1)
    request = there.event(REQUEST)
    assert request.uid == 7 and request.private == b"from here" + bytes(47), request.private
    assert (request.srq, request.flow) == (1, 0)
    there.accept(request.id, 8, private=b"from there", flow=1)
    response = here.event(RESPONSE)
    assert response.private == b"from there" + bytes(186), response.private
    assert (response.srq, response.flow) == (0, 1)
    here.accept(active, 0, valid=0)
    assert there.event(ESTABLISHED).uid == 8
    return active, request.id


def listening(channel, address, port):
    listener = channel.create(7)
    channel.bind(listener, address, port)
    channel.listen(listener)
    return listener


def test_life(address):
    """A connection from its request to the end of TIMEWAIT."""
    here, there = Channel(), Channel()
    listener = listening(there, address, 7471)
    active, passive = connected(here, there, listener, address, 7471)
    fails(errno.EINVAL, here.connect, active)
    here.disconnect(active)
    assert there.event(DISCONNECTED).uid == 8
    there.disconnect(passive)
    here.event(DISCONNECTED)
    kinds = sorted([here.event().kind, there.event().kind])
    assert kinds == [TIMEWAIT_EXIT, TIMEWAIT_EXIT], kinds
    # Six events of the active side were taken, and those of the passive side without its request.
    assert here.destroy(active) == 5 and there.destroy(passive) == 3 and there.destroy(listener) == 1
    nobody = here.create(1)
    here.resolve(nobody, address, 7999)
    here.event(ADDR_RESOLVED)
    here.route(nobody)
    here.event(ROUTE_RESOLVED)
    here.connect(nobody)
    refused = here.event(REJECTED)
    assert refused.status == 8 and len(refused.private) == 148, refused.status


def test_errors(address):
    """The numbers that the kernel answers."""
    channel, other = Channel(), Channel()
    fails(errno.EINVAL, os.write, channel.fd, b"")
    fails(errno.EINVAL, os.write, channel.fd, b"1234567")
    fails(errno.EINVAL, os.write, channel.fd, struct.pack("=IHH", 25, 0, 0))
    fails(errno.EINVAL, os.write, channel.fd, struct.pack("=IHH", DESTROY, 16, 4))
    for command in (GET_OPTION, RESOLVE_IB):
        fails(errno.ENOSYS, channel.call, command, bytes(64))
    fails(errno.EINVAL, channel.create, 1, 0x0107)
    fails(errno.ENOSPC, channel.call, CREATE, struct.pack("=QQHB5x", 1, 8, TCP, 2))
    bad = struct.pack("=IHH", CREATE, 24, 4) + struct.pack("=QQHB5x", 1, 8, TCP, 2)
    fails(errno.EFAULT, os.write, channel.fd, bad)
    id = channel.create(1)
    fails(errno.ENOENT, channel.destroy, id + 1000)
    fails(errno.EINVAL, other.destroy, id)
    for act in (channel.connect, channel.disconnect, channel.route):
        fails(errno.EINVAL, act, id)
    fails(errno.EADDRNOTAVAIL, channel.bind, id, "203.0.113.7", 1)
    channel.bind(id, address, 7472)
    fails(errno.EINVAL, channel.bind, id, address, 7473)
    # Once there is something at the endpoint, the kernel does not say whether it was connected.
    fails(errno.EINVAL, channel.disconnect, id)
    channel.call(LISTEN, struct.pack("=II", id, 1))
    channel.disconnect(id)
    again = channel.create(2)
    fails(errno.EADDRINUSE, channel.bind, again, address, 7472)
    fails(errno.EADDRNOTAVAIL, channel.bind, again, "0.0.0.0", 7472)
    channel.bind(again, address, 0)
    third = channel.create(3)
    channel.bind(third, address, 7473)
    channel.destroy(third)
    channel.bind(channel.create(3), address, 7473)
    query = lambda option, room, id: channel.call(QUERY, struct.pack("=II", id, option), room)
    fails(errno.ENOSPC, query, 0, 271, id)
    fails(errno.ENOSYS, query, 9, 280, id)
    size, = struct.unpack_from("=H", query(0, 280, id), 12)
    assert size == 16 and query(0, 272, id)[16:32] == name(address, 7472)
    port = int.from_bytes(query(0, 280, again)[18:20], "big")
    assert port > 1024 and port != 7472
    fails(errno.EINVAL, channel.call, NOTIFY, struct.pack("=II", id, 4))
    value = ctypes.c_int(1)
    option = lambda level, what, len: channel.call(
        SET_OPTION, struct.pack("=QIIII", ctypes.addressof(value), id, level, what, len))
    fails(errno.ENOSYS, option, 0, 9, 4)
    fails(errno.EINVAL, option, 0, 1, 3)
    option(0, 1, 4)
    option(0, 0, 1)
    fails(errno.ENOENT, channel.number, MIGRATE, struct.pack("=II", id, 999))
    fails(errno.EINVAL, channel.number, MIGRATE, struct.pack("=II", id, 0))
    channel.call(WRITE_EVENT, struct.pack("=IIIIQ", id, 0, USER, 5, 0x1234))
    event = channel.event(USER)
    assert (event.status, event.param[:2]) == (5, b"\x34\x12")


def test_families(address):
    """A port has a listener for IPv4, and one for IPv6 only, as servers make them."""
    here, there = Channel(), Channel()
    six, only = there.create(6), ctypes.c_int(1)
    there.call(SET_OPTION, struct.pack("=QIIII", ctypes.addressof(only), six, 0, 2, 4))
    any_six = struct.pack("=H2sI16sI", socket.AF_INET6, (7480).to_bytes(2, "big"), 0, bytes(16), 0)
    there.call(BIND, struct.pack("=IHH128s", six, 28, 0, any_six))
    there.listen(six)
    listener = listening(there, "0.0.0.0", 7480)
    connected(here, there, listener, address, 7480)


def test_routes(address):
    """Both families of commands tell the same path: as a structure, and as a record of the specification."""
    there, here = Channel(), Channel()
    listening(there, address, 7471)
    active = here.create(1)
    here.resolve(active, address, 7471)
    here.event(ADDR_RESOLVED)
    path_of = struct.Struct("=16s16s4xI4sIIHBBBBBBBBBx")
    gid = bytes(10) + b"\xff\xff" + socket.inet_aton(address)

    def both(id):
        route = here.call(QUERY_ROUTE, struct.pack("=II", id, 0), 216)
        guid, first = struct.unpack_from("=Q", route)[0], path_of.unpack_from(route, 8)
        source, target, count, port, index = struct.unpack_from("=28s28sIB3xI", route, 8 + 2 * 64)
        assert guid and (port, index) == (1, 0) and route[8 + 64:8 + 2 * 64] == bytes(64)
        assert source[:2] == target[:2] == name(address, 0)[:2] and target[:8] == name(address, 7471)[:8], target
        record = here.call(QUERY, struct.pack("=II", id, 1), 80)
        assert struct.unpack_from("=I", record)[0] == count
        return count, first, record[8:12], record[16:]

    # The addresses are known before the path is.
    assert both(active) == (0, (gid, gid, 0, bytes(4), 0, 0, 0xFFFF) + (0,) * 9, bytes(4), bytes(64))
    here.route(active)
    here.event(ROUTE_RESOLVED)
    told = both(active)
    count, path, flags, record = told
    to, source, raw, flow, reversible, mtu, pkey, hops, traffic, paths, sl, *exact, preference = (*path, 0)
    assert (count, to, source, raw, reversible, pkey) == (1, gid, gid, 0, 1, 0xFFFF), path
    # IB_PATH_GMP, IB_PATH_PRIMARY and IB_PATH_BIDIRECTIONAL (rdma/ib_user_sa.h).
    assert struct.unpack("=I", flags)[0] == 0x2B, flags
    mtu_selector, rate_selector, rate, life_selector, life = exact
    # 2: exactly this.
    assert (mtu_selector, rate_selector, life_selector) == (2, 2, 2) and mtu and rate and life, path
    assert record[:8] == struct.pack(">Q", TCP << 16 | 7471), record
    assert record[8:40] == to + source and record[44:48] == flow[1:] + bytes([hops]), record
    assert record[48:52] == bytes([traffic, reversible << 7 | 1]) + struct.pack("=H", pkey), record
    assert record[53:57] == bytes([sl, 2 << 6 | mtu, 2 << 6 | rate, 2 << 6 | life]), record
    # A connection keeps it.
    here.connect(active)
    assert both(active) == told
    there.accept(there.event(REQUEST).id, 8)
    here.event(RESPONSE)
    here.accept(active, 0, valid=0)
    there.event(ESTABLISHED)
    assert both(active) == told
    # Datagrams have one, too, with a flow label of their own.
    datagrams = here.create(2, UDP, 4)
    here.resolve(datagrams, address, 7471)
    here.event(ADDR_RESOLVED)
    here.route(datagrams)
    here.event(ROUTE_RESOLVED)
    count, own, *_ = both(datagrams)
    assert count == 1 and own[:3] + own[4:] == path[:3] + path[4:], own


def test_descriptors(address):
    """What programs do with the descriptor of a channel."""
    channel = Channel()
    status = os.fstat(channel.fd)
    assert stat.S_ISCHR(status.st_mode) and stat.S_ISCHR(os.stat("/dev/infiniband/rdma_cm").st_mode)
    assert not channel.ready()
    poller = select.epoll()
    poller.register(channel.fd, select.EPOLLIN | select.EPOLLOUT)
    assert poller.poll(0) == [], "neither readable nor writable"
    id = channel.create(1)
    channel.resolve(id, address, 7471)
    assert poller.poll(0) == [(channel.fd, select.EPOLLIN)]
    copy = os.dup(channel.fd)
    channel.call(RESOLVE_ROUTE, struct.pack("=II", id, 1), 0, copy)
    os.close(channel.fd)
    channel.fd = copy
    channel.event(ADDR_RESOLVED)
    channel.event(ROUTE_RESOLVED)
    assert not channel.ready()
    os.set_blocking(channel.fd, False)
    fails(errno.EAGAIN, channel.event)
    # Events go with their identifier, and are gone with it.
    other = Channel()
    first, second = channel.create(3), channel.create(4)
    for one in (first, second, first):
        channel.call(WRITE_EVENT, struct.pack("=IIIIQ", one, 0, USER, one, 0))
    assert other.number(MIGRATE, struct.pack("=II", first, channel.fd)) == 0
    assert [other.event(USER).uid for _ in range(2)] == [3, 3] and not other.ready()
    assert channel.ready() and channel.destroy(second) == 0 and not channel.ready()
    assert other.destroy(first) == 2
    # A channel is closed with its last descriptor, and its identifiers with it.
    closed = Channel()
    closed.bind(closed.create(1), address, 7480)
    copy = os.dup(closed.fd)
    closed.close()
    last = other.create(6)
    fails(errno.EADDRINUSE, other.bind, last, address, 7480)
    os.close(copy)
    other.bind(last, address, 7480)
    # A descriptor of something else is none of a channel, whatever its number was.
    channel.close()
    fails(errno.EBADF, channel.create, 1)
    null = os.open("/dev/null", os.O_WRONLY)
    assert null == channel.fd and os.write(null, bytes(24)) == 24
    reader, writer = os.pipe()
    fails(errno.EBADF, os.write, reader, bytes(24))
    # A child leaves the channels of its parent alone, and has its own.
    child = os.fork()
    if child == 0:
        fails(errno.EBADF, other.create, 1)
        own = Channel()
        own.create(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    other.create(5)


def test_waiting(address):
    """Threads that wait for an event."""
    channel = Channel()
    id = channel.create(1)
    found = []
    waiters = [threading.Thread(target=lambda: found.append(channel.event().status)) for _ in range(3)]
    [waiter.start() for waiter in waiters]
    for status in (1, 2, 3):
        channel.call(WRITE_EVENT, struct.pack("=IIIIQ", id, 0, USER, status, 0))
    [waiter.join(20) for waiter in waiters]
    assert sorted(found) == [1, 2, 3], found
    # A signal interrupts; Python then waits again, with the same call.
    signal.signal(signal.SIGALRM, lambda *_: channel.call(WRITE_EVENT, struct.pack("=IIIIQ", id, 0, USER, 4, 0)))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    assert channel.event().status == 4
    # One that waits in a channel which is closed goes on waiting.
    def wait():
        try:
            channel.event()
        finally:
            found.append("woken")

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.1)
    channel.close()
    # So does one that asks a moment too late; the thread that closed it is told.
    fails(errno.EBADF, channel.event)
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.1)
    assert "woken" not in found


def test_handling(address):
    """A close lets a thread that handles an event ask for the next one first: rping frees what that thread reads to do so."""
    first = []
    for number in range(10):
        channel = Channel()
        # Numbers that nothing else uses, as below.
        low, channel.fd = channel.fd, fcntl.fcntl(channel.fd, fcntl.F_DUPFD_CLOEXEC, 300 + number)
        os.close(low)
        id = channel.create(1)
        taken, closing, order = threading.Event(), threading.Event(), []

        def handle():
            channel.event()
            taken.set()
            closing.wait()
            time.sleep(0.002)
            order.append("asks")
            channel.event()

        threading.Thread(target=handle, daemon=True).start()
        channel.call(WRITE_EVENT, struct.pack("=IIIIQ", id, 0, USER, 0, 0))
        taken.wait()
        closing.set()
        channel.close()
        order.append("closed")
        first.append(order[0])
    # A busy machine may delay the thread beyond the time that it gets.
    assert first.count("asks") >= 8, first


def test_closing(address):
    """A thread that asks for an event while another one closes the channel waits, however close they come."""
    failed = []

    def ask(channel):
        try:
            while True:
                channel.event()
        except OSError as error:
            failed.append(error)

    for number in range(150):
        channel = Channel()
        # Numbers that nothing else uses: a thread that is late would take part in the next round.
        first, channel.fd = channel.fd, fcntl.fcntl(channel.fd, fcntl.F_DUPFD_CLOEXEC, 50 + number)
        os.close(first)
        id = channel.create(1)
        threading.Thread(target=ask, args=(channel,), daemon=True).start()
        for _ in range(number % 4):
            channel.call(WRITE_EVENT, struct.pack("=IIIIQ", id, 0, USER, 0, 0))
        channel.close()
    time.sleep(0.1)
    assert not failed, (len(failed), failed[0])


def test_many(address, count):
    """Connections and disconnections leave nothing behind."""
    here, there = Channel(), Channel()
    listener = listening(there, address, 7471)

    def used():
        pages = int(open("/proc/self/statm").read().split()[1])
        return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGESIZE")

    def round():
        active, passive = connected(here, there, listener, address, 7471)
        here.disconnect(active)
        there.event(DISCONNECTED)
        there.disconnect(passive)
        here.event(DISCONNECTED)
        here.destroy(active)
        there.destroy(passive)

    # The tables of what is over fill up first; they are bounded.
    [round() for _ in range(int(count) // 2)]
    before = used()
    start = time.monotonic()
    [round() for _ in range(int(count) // 2)]
    spent = time.monotonic() - start
    after = used()
    print(f"{int(count) / 2 / spent:.0f} connections per second; descriptors and bytes: {before}, then {after}")
    assert before[0] == after[0], "descriptors"
    assert after[1] - before[1] < 4 << 20, "memory"


globals()["test_" + sys.argv[1]](*sys.argv[2:])
print("done")
