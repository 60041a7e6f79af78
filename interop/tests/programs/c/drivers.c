/* The driver behavior that programs rely on, above all that of mlx5: fields of address handles and completions, and
 * events. */
#include "common.h"
#include <arpa/inet.h>
#include <poll.h>

enum { QKEY = 0x1234, GRH = 40, IMM = 0x01020304 };

/* A flow label as UCX sets it: all 32 bits. */
static const uint32_t WIDE = 0xffffffff;

static char memory[4096];

static int is_ipv4(const union ibv_gid *gid) {
	static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	return memcmp(gid, mapped, sizeof mapped) == 0;
}

static struct ibv_qp *create_ud(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv) {
	struct ibv_qp_init_attr init = {
		.send_cq = send,
		.recv_cq = recv,
		.qp_type = IBV_QPT_UD,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0, "INIT");
	attr.qp_state = IBV_QPS_RTR;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "RTR");
	attr.qp_state = IBV_QPS_RTS;
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
	return qp;
}

static void post_recv(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t id) {
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = 1024, .lkey = mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
	check(ibv_post_recv(qp, &wr, &bad) == 0, "ibv_post_recv");
}

/* A datagram from a queue pair to itself. */
static void send_datagram(struct ibv_qp *qp, struct ibv_ah *ah, struct ibv_mr *mr, int flags) {
	struct ibv_sge sge = {.addr = (uintptr_t)mr->addr + 2048, .length = 8, .lkey = mr->lkey};
	struct ibv_send_wr *bad, wr = {
		.wr_id = 8,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.imm_data = htonl(IMM),
		.send_flags = IBV_SEND_SIGNALED | flags,
		.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = QKEY},
	};
	check(ibv_post_send(qp, &wr, &bad) == 0, "ibv_post_send");
}

static struct ibv_wc poll_one(struct ibv_cq *cq) {
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) == 0) {
	}
	return wc;
}

static void flow_labels(struct ibv_pd *pd, struct ibv_cq *cq, const union ibv_gid *gid) {
	struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .flow_label = WIDE, .hop_limit = 64}};
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	check(ah != NULL, "a flow label of 32 bits in ibv_create_ah");
	check(ah && ibv_destroy_ah(ah) == 0, "ibv_destroy_ah");
	struct ibv_qp *qp = create_rc(pd, cq);
	to_init(qp);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = way,
	};
	check(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
	      "a flow label of 32 bits in ibv_modify_qp");
	check(ibv_query_qp(qp, &attr, IBV_QP_AV, &init) == 0, "ibv_query_qp");
	check(attr.ah_attr.grh.flow_label == (WIDE & 0xfffff), "its lower 20 bits are kept");
	check(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
}

static void datagrams(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr, const union ibv_gid *gid) {
	struct ibv_ah_attr back, way = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}};
	struct ibv_cq *sent = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = create_ud(pd, sent, cq);
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	post_recv(qp, mr, 5);
	send_datagram(qp, ah, mr, 0);
	struct ibv_wc wc = poll_one(cq);
	check(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.opcode == IBV_WC_RECV, "a datagram");
	check(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == htonl(IMM), "its flags and immediate data");
	check(wc.byte_len == GRH + 8, "its length");
	check(wc.qp_num == qp->qp_num && wc.src_qp == qp->qp_num, "its queue pairs");
	check(wc.slid == 0 && wc.dlid_path_bits == 0 && wc.pkey_index == 0 && wc.vendor_err == 0, "what RoCE has not");
	/* Bit 3 means UDP; the bits below it are 1 for IPv6 and 2 for IPv4. */
	uint8_t type = wc.sl;
	check(type == (is_ipv4(gid) ? 10 : 9), "sl is the type of the network header");
	/* A program that relies on this type finds the receiver's address here. */
	const char *receiver = is_ipv4(gid) ? memory + 36 : memory + 24;
	check(memcmp(receiver, gid->raw + (is_ipv4(gid) ? 12 : 0), is_ipv4(gid) ? 4 : 16) == 0, "the receiver's address");
	check(ibv_init_ah_from_wc(pd->context, 1, &wc, (struct ibv_grh *)memory, &back) == 0, "ibv_init_ah_from_wc");
	check(back.sl == 0 && memcmp(&back.grh.dgid, gid, sizeof *gid) == 0, "the way back");
	struct ibv_ah *answer = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory, 1);
	check(answer != NULL, "ibv_create_ah_from_wc");
	wc = poll_one(sent);
	check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 8, "its sending");
	check(wc.wc_flags == IBV_WC_WITH_IMM, "which was with immediate data");
	/* Some programs copy the field from the completion of the datagram unchanged. */
	way.sl = type;
	struct ibv_ah *copied = ibv_create_ah(pd, &way);
	check(copied != NULL, "an address handle with that sl");
	post_recv(qp, mr, 6);
	send_datagram(qp, copied ? copied : ah, mr, 0);
	check(poll_one(cq).wr_id == 6, "a datagram by it");
	ibv_destroy_ah(copied);
	ibv_destroy_ah(answer);
	ibv_destroy_ah(ah);
	check(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(sent) == 0, "the end");
}

/* What `rnic show vendor-errors` says of a key that the peer does not know. */
enum { REFUSED_BY_PEER = 68 };

/* A WRITE that succeeds, and one that its target refuses. */
static void reliable(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr) {
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	check(post_write(a, mr, mr, 8) == 0, "a WRITE");
	struct ibv_wc good = poll_one(cq);
	check(good.status == IBV_WC_SUCCESS && good.vendor_err == 0 && good.opcode == IBV_WC_RDMA_WRITE, "its success");
	check(good.sl == 0 && good.pkey_index == 0, "only datagrams have a network header");
	struct ibv_mr wrong = *mr;
	wrong.rkey ^= 0x100;
	check(post_write(a, mr, &wrong, 8) == 0, "a WRITE by another key");
	struct ibv_wc wc = poll_one(cq);
	check(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 7 && wc.qp_num == a->qp_num, "its completion");
	check(wc.vendor_err == REFUSED_BY_PEER, "the reason in vendor_err");
	check(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0, "the end");
}

static int events(struct ibv_comp_channel *channel) {
	struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;
	int count = 0;
	while (poll(&fd, 1, 0) == 1 && ibv_get_cq_event(channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		count++;
	}
	return count;
}

/* Arming a queue raises an event at once if the queue holds a completion of the requested kind that has not raised
 * one. */
static void arming(struct ibv_pd *pd, struct ibv_mr *mr, const union ibv_gid *gid) {
	struct ibv_comp_channel *channel = ibv_create_comp_channel(pd->context);
	struct ibv_cq *sent = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	struct ibv_cq *cq = ibv_create_cq(pd->context, 16, NULL, channel, 0);
	struct ibv_ah_attr way = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}};
	struct ibv_qp *qp = create_ud(pd, sent, cq);
	struct ibv_ah *ah = ibv_create_ah(pd, &way);
	for (int solicited = 0; solicited < 2; solicited++) {
		check(ibv_req_notify_cq(cq, solicited) == 0 && events(channel) == 0, "an empty queue");
		if (solicited) {
			/* A queue that is armed for solicited completions is silent about others. */
			post_recv(qp, mr, 4);
			send_datagram(qp, ah, mr, 0);
			check(poll_one(cq).wr_id == 4 && events(channel) == 0, "a completion that is not solicited");
			check(ibv_req_notify_cq(cq, 1) == 0 && events(channel) == 0, "nor when it is armed again");
		}
		post_recv(qp, mr, 1);
		send_datagram(qp, ah, mr, solicited ? IBV_SEND_SOLICITED : 0);
		while (events(channel) == 0) {
			/* Polling drives the device. */
			struct ibv_wc wc;
			ibv_poll_cq(sent, 1, &wc);
		}
		/* The queue is disarmed: this completion raises no event. */
		post_recv(qp, mr, 2);
		send_datagram(qp, ah, mr, IBV_SEND_SOLICITED);
		poll_one(cq);
		while (ibv_req_notify_cq(cq, solicited) == 0 && events(channel) == 0) {
			struct ibv_wc wc;
			ibv_poll_cq(sent, 1, &wc);
		}
		check(ibv_req_notify_cq(cq, solicited) == 0 && events(channel) == 0, "completions that it told of");
		poll_one(cq);
		check(ibv_req_notify_cq(cq, solicited) == 0 && events(channel) == 0, "one that was polled");
		/* This completion disarms the queue. */
		post_recv(qp, mr, 3);
		send_datagram(qp, ah, mr, IBV_SEND_SOLICITED);
		poll_one(cq);
		while (events(channel) == 0) {
		}
	}
	ibv_destroy_ah(ah);
	check(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(sent) == 0, "the end");
	check(ibv_destroy_comp_channel(channel) == 0, "the channel");
}

/* Of the key of a bind, the device reads the low byte: the rest stays as it is. */
static void window_keys(struct ibv_pd *pd, struct ibv_cq *cq) {
	static char bytes[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	check(mr && mw && a && b, "a window and queue pairs");
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	uint32_t key = (mw->rkey & ~0xffu) | 0x5a;
	struct ibv_send_wr *bad, bind = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = ~key ^ 0xff;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)bytes, sizeof bytes, IBV_ACCESS_REMOTE_WRITE};
	check(ibv_post_send(b, &bind, &bad) == 0 && poll_one(cq).status == IBV_WC_SUCCESS, "a bind");
	struct ibv_mr remote = *mr;
	remote.rkey = key;
	check(post_write(a, mr, &remote, 8) == 0 && poll_one(cq).status == IBV_WC_SUCCESS, "a WRITE with the key");
	remote.rkey = bind.bind_mw.rkey;
	check(post_write(a, mr, &remote, 8) == 0 && poll_one(cq).status == IBV_WC_REM_ACCESS_ERR, "with the key as posted");
	check(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0, "the queue pairs");
	check(ibv_dealloc_mw(mw) == 0 && ibv_dereg_mr(mr) == 0, "the window and the region");
}

int main(void) {
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	union ibv_gid gid;
	check(ibv_query_gid(context, 1, 0, &gid) == 0, "the GID");
	flow_labels(pd, cq, &gid);
	datagrams(pd, cq, mr, &gid);
	reliable(pd, cq, mr);
	arming(pd, mr, &gid);
	window_keys(pd, cq);
	printf("%d failures\n", failures);
	return failures != 0;
}
