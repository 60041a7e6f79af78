"""Moves data between two processes by a transfer engine of machine learning.

usage: engines.py mooncake|dlslime server|client ADDRESS FOLDER

The server lends a buffer, and says where in a file of FOLDER. The client writes it and reads it back, and says in another file
when it is done. Then the server compares the buffer with what the client was to write.
"""

import ctypes
import json
import mmap
import os
import sys
import time

SIZE = 8 << 20
DATA = bytes(range(251)) * (SIZE // 251 + 1)
DATA = DATA[:SIZE]
BLANK = bytes(SIZE)

engine, role, address, folder = sys.argv[1:]
buffer = mmap.mmap(-1, SIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def check(what, condition):
    if not condition:
        sys.exit(f"{engine} {role}: {what} failed")


def tell(name, news):
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        json.dump(news, file)
    os.rename(path + ".new", path)


def hear(name):
    path = os.path.join(folder, name)
    for _ in range(600):
        if os.path.exists(path):
            with open(path) as file:
                return json.load(file)
        time.sleep(0.1)
    sys.exit(f"{engine} {role}: {name} does not come")


def mooncake():
    from mooncake.engine import TransferEngine

    one = TransferEngine()
    check("initialize", one.initialize(address, "P2PHANDSHAKE", "rdma", "rnic0") == 0)
    check("register_memory", one.register_memory(start, SIZE) == 0)
    if role == "server":
        tell("server", [f"{address}:{one.get_rpc_port()}", start])
        hear("done")
        return
    peer, there = hear("server")
    buffer[:] = DATA
    check("a write", one.transfer_sync_write(peer, start, there, SIZE) == 0)
    buffer[:] = BLANK
    check("a read", one.transfer_sync_read(peer, start, there, SIZE) == 0)


def dlslime():
    import dlslime

    # Four queue pairs share a transfer.
    end = dlslime.RDMAEndpoint("rnic0", 1, "RoCE", 4)
    here = end.register_memory_region(role, start, 0, SIZE)
    tell(role, [end.endpoint_info(), end.mr_info()[role]])
    peer, region = hear("client" if role == "server" else "server")
    end.connect(peer)
    tell(f"{role} connected", [])
    hear("client connected" if role == "server" else "server connected")
    if role == "server":
        got = end.imm_recv()
        got.wait()
        check("the immediate data", got.imm_data() == 77)
        hear("done")
        return
    there = end.register_remote_memory_region("server", region)
    buffer[:] = DATA
    end.write([(here, there, 0, 0, SIZE)], None).wait()
    buffer[:] = BLANK
    end.read([(here, there, 0, 0, SIZE)], None).wait()
    end.write_with_imm([(here, there, 0, 0, 4096)], 77, None).wait()


{"mooncake": mooncake, "dlslime": dlslime}[engine]()
check("the comparison of the data", buffer[:] == DATA)
if role == "client":
    tell("done", [])
print(f"{engine} {role}: the data are right", flush=True)
# Both engines have threads that do not end by themselves.
os._exit(0)
