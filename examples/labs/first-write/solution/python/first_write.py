"""The first WRITE. Lab of $(student).

Two queue pairs of one device are connected to each other, so that one program can be both sides.
"""
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR
import pyverbs.enums as e

TEXT = "hello from $(student), number $(number)".encode()
OFFSET = $(offset)
REGION = $(region)


def create(pd, cq):
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))


def connect(qp, peer, gid):
    """Brings a queue pair from RESET to RTS."""
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = peer.qp_num
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=0))
    qp.to_rts(attr)


context = Context(name=get_device_list()[0].name.decode())
pd, cq = PD(context), CQ(context, 16)
left, right = create(pd, cq), create(pd, cq)
gid = context.query_gid(port_num=1, index=0)
connect(left, right, gid)
connect(right, left, gid)

local = MR(pd, REGION, e.IBV_ACCESS_LOCAL_WRITE)
remote = MR(pd, REGION, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
local.write(TEXT, len(TEXT))
print(f"the remote region begins at {remote.buf:#x}")

WORDS = {e.IBV_WC_SUCCESS: "success", e.IBV_WC_REM_ACCESS_ERR: "remote access error"}


def write(rkey):
    """WRITEs the text, and waits for the completion."""
    sge = SGE(local.buf, len(TEXT), local.lkey)
    wr = SendWR(wr_id=1, num_sge=1, sg=[sge], opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(rkey, remote.buf + OFFSET)
    left.post_send(wr)
    while True:
        count, completions = cq.poll(1)
        if count:
            return WORDS.get(completions[0].status, completions[0].status)


print("first:", write(remote.rkey))
print(remote.read(len(TEXT), OFFSET))
local.write(b"-" * len(TEXT), len(TEXT))
print("second:", write(remote.rkey + 1))
print(remote.read(len(TEXT), OFFSET))
