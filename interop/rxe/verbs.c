// A text interface to verbs: runs a test's commands on any device.
//
// Reads one command per line, words and NAME=NUMBER pairs, and answers each with one line: "ok ..." or "error NUMBER TEXT".
// Commands identify memory, queue pairs and other objects by small numbers of their choice. The same source runs on the
// kernel's rxe and on any other libibverbs, as either side of a connection.
//
//   open DEVICE gid=INDEX                      ok GID MTU
//   mr MR len= access=                         ok ADDRESS LKEY RKEY    initialised to 0xee
//   mw MW                                      ok RKEY                 a type 2 memory window
//   dereg MR
//   fill MR off= len= seed=                    writes the pattern of a seed
//   check MR off= len= seed=                   reports the first byte that differs from the pattern
//   same MR off= len= byte=                    reports the first byte that differs from BYTE
//   put MR off= value=, get MR off=            a 64-bit word in host byte order; ok VALUE
//   srq SRQ depth=
//   qp QP TYPE depth= [srq=]                   ok QPN; TYPE is rc, uc or ud. One completion queue for sends and receives
//   connect QP GID qpn= psn= rpsn= mtu= timeout= retry= rnr= minrnr= rd= access= qkey=      to RTS; ud only uses psn, qkey
//   ah AH GID
//   post QP OPERATION id= mr= off= len= imm= inv= raddr= rkey= compare= value= flags= ah= qpn= qkey= mw= access=
//   recv QP id= mr= off= len= [srq=]
//   wait QP count= ms=                         ok ID:STATUS:OPCODE:BYTES:FLAGS:IMM:QPN ...    at most COUNT, within MS milliseconds
//   state QP                                   ok STATE
//   fail QP                                    enters the error state
//   destroy QP
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "words.h"

enum { SLOTS = 64 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static uint8_t gid_index;
// The flag of a receive whose message invalidated a key. rxe passes the kernel's IB_WC_WITH_INVALIDATE to programs
// unchanged, which differs from the verbs' value.
static unsigned with_inv = IBV_WC_WITH_INV;
static struct ibv_mr *mrs[SLOTS];
static struct ibv_mw *mws[SLOTS];
static struct ibv_srq *srqs[SLOTS];
static struct ibv_qp *qps[SLOTS];
static struct ibv_ah *ahs[SLOTS];

static int slot(const char *name)
{
	const char *value = name ? text(name) : word_count > 1 ? words[1] : NULL;
	int at = value ? atoi(value) : -1;

	return at < 0 || at >= SLOTS ? -1 : at;
}

static int fail(int error)
{
	printf("error %d %s\n", error, strerror(error));
	return 0;
}

static int done(int error)
{
	return error ? fail(error) : (puts("ok"), 0);
}

static int read_gid(const char *hex, union ibv_gid *gid)
{
	if (!hex || strlen(hex) != 32)
		return 0;
	for (int at = 0; at < 16; at++) {
		char byte[3] = { hex[2 * at], hex[2 * at + 1], 0 };

		gid->raw[at] = strtoul(byte, NULL, 16);
	}
	return 1;
}

// The pattern depends on both the seed and the offset.
static uint8_t pattern(uint32_t seed, uint32_t at)
{
	uint32_t mixed = (at + seed * 0x9e3779b9u) * 0x85ebca6bu;

	return (mixed ^ mixed >> 15) >> 8;
}

static int do_open(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_port_attr port;
	union ibv_gid gid;

	for (int at = 0; at < count && !context; at++)
		if (word_count > 1 && !strcmp(ibv_get_device_name(list[at]), words[1]))
			context = ibv_open_device(list[at]);
	if (!context)
		return fail(ENODEV);
	gid_index = number("gid", 0);
	if (!strncmp(words[1], "rxe", 3))
		with_inv = 1 << 2;
	pd = ibv_alloc_pd(context);
	if (!pd || ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &gid))
		return fail(errno);
	printf("ok ");
	for (int at = 0; at < 16; at++)
		printf("%02x", gid.raw[at]);
	printf(" %d\n", 128 << port.active_mtu);
	return 0;
}

static int do_mr(int at)
{
	size_t length = number("len", 0);
 // Separate pages, so that nothing else is next to the registered memory.
	void *memory = aligned_alloc(4096, (length + 4096) / 4096 * 4096);

	if (!memory)
		return fail(ENOMEM);
	memset(memory, 0xee, length);
	mrs[at] = ibv_reg_mr(pd, memory, length, number("access", 0));
	if (!mrs[at])
		return fail(errno);
	printf("ok %llu %u %u\n", (unsigned long long)(uintptr_t)memory, mrs[at]->lkey, mrs[at]->rkey);
	return 0;
}

static int do_mw(int at)
{
	mws[at] = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!mws[at])
		return fail(errno);
	printf("ok %u\n", mws[at]->rkey);
	return 0;
}

static int do_dereg(int at)
{
	void *memory = mrs[at]->addr;
	int error = ibv_dereg_mr(mrs[at]);

	if (!error)
		free(memory);
	return done(error);
}

static int do_bytes(int at)
{
	uint64_t offset = number("off", 0), length = number("len", 0);
	uint8_t *bytes = (uint8_t *)mrs[at]->addr + offset;
	uint32_t seed = number("seed", 0);

	if (offset > mrs[at]->length || length > mrs[at]->length - offset)
		return fail(ERANGE);
	for (uint64_t byte = 0; byte < length; byte++) {
		uint8_t expected = words[0][0] == 's' ? number("byte", 0) : pattern(seed, byte);

		if (words[0][0] == 'f')
			bytes[byte] = expected;
		else if (bytes[byte] != expected) {
			printf("error 0 byte %llu of %llu is %02x, not %02x\n", (unsigned long long)byte,
			       (unsigned long long)length, bytes[byte], expected);
			return 0;
		}
	}
	return done(0);
}

static int do_word(int at)
{
	uint64_t offset = number("off", 0), value;

	if (offset > mrs[at]->length || mrs[at]->length - offset < sizeof(value))
		return fail(ERANGE);
	if (words[0][0] == 'p') {
		value = number("value", 0);
		memcpy((char *)mrs[at]->addr + offset, &value, sizeof(value));
	}
	memcpy(&value, (char *)mrs[at]->addr + offset, sizeof(value));
	printf("ok %llu\n", (unsigned long long)value);
	return 0;
}

static int do_srq(int at)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = number("depth", 64), .max_sge = 1 } };

	srqs[at] = ibv_create_srq(pd, &init);
	return done(srqs[at] ? 0 : errno);
}

static int do_qp(int at)
{
	uint32_t depth = number("depth", 64);
	struct ibv_cq *cq = ibv_create_cq(context, 2 * depth, NULL, NULL, 0);
	int srq = slot("srq");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq < 0 ? NULL : srqs[srq],
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = words[2][0] == 'r' ? IBV_QPT_RC : words[2][1] == 'c' ? IBV_QPT_UC : IBV_QPT_UD,
	};

	if (!cq)
		return fail(errno);
	qps[at] = ibv_create_qp(pd, &init);
	if (!qps[at])
		return fail(errno);
	printf("ok %u\n", qps[at]->qp_num);
	return 0;
}

// All attributes that a line can set; each step of a connection uses its own subset.
static struct ibv_qp_attr attributes(const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {
		.port_num = 1,
		.qp_access_flags = number("access", 0),
		.qkey = number("qkey", 0),
		.path_mtu = IBV_MTU_256,
		.dest_qp_num = number("qpn", 0),
		.sq_psn = number("psn", 0),
		.rq_psn = number("rpsn", 0),
		.timeout = number("timeout", 14),
		.retry_cnt = number("retry", 7),
		.rnr_retry = number("rnr", 7),
		.min_rnr_timer = number("minrnr", 12),
		.max_rd_atomic = number("rd", 1),
		.max_dest_rd_atomic = number("rd", 1),
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};

	while (attr.path_mtu < IBV_MTU_4096 && 128u << attr.path_mtu < number("mtu", 1024))
		attr.path_mtu++;
	return attr;
}

static int do_connect(int at)
{
	static const struct {
		enum ibv_qp_state state;
  // Attributes for every queue pair, for a connected one (rc, uc), for a reliable one (rc), and for datagrams (ud).
		int any, connected, reliable, datagrams;
	} steps[] = {
		{ IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT, IBV_QP_ACCESS_FLAGS, 0, IBV_QP_QKEY },
		{ IBV_QPS_RTR, 0, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
		  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER, 0 },
		{ IBV_QPS_RTS, IBV_QP_SQ_PSN, 0,
		  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, 0 },
	};
	enum ibv_qp_type type = qps[at]->qp_type;
	union ibv_gid gid = { 0 };
	int error = 0;

	if (type != IBV_QPT_UD && !read_gid(word_count > 2 ? words[2] : NULL, &gid))
		return fail(EINVAL);
	struct ibv_qp_attr attr = attributes(&gid);

	for (size_t step = 0; step < sizeof(steps) / sizeof(steps[0]) && !error; step++) {
		int own = type == IBV_QPT_UD ? steps[step].datagrams : steps[step].connected;

		if (type == IBV_QPT_RC)
			own |= steps[step].reliable;
		attr.qp_state = steps[step].state;
		error = ibv_modify_qp(qps[at], &attr, IBV_QP_STATE | steps[step].any | own);
	}
	return done(error);
}

static int do_ah(int at)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } };

	if (!read_gid(word_count > 2 ? words[2] : NULL, &attr.grh.dgid))
		return fail(EINVAL);
	ahs[at] = ibv_create_ah(pd, &attr);
	return done(ahs[at] ? 0 : errno);
}

static struct ibv_sge gather(void)
{
	int mr = slot("mr");
	struct ibv_sge sge = { .length = number("len", 0) };

	if (mr >= 0 && mrs[mr]) {
		sge.addr = (uintptr_t)mrs[mr]->addr + number("off", 0);
		sge.lkey = mrs[mr]->lkey;
	}
	return sge;
}

static int opcode(const char *name)
{
	static const struct {
		const char *name;
		int opcode;
	} all[] = {
		{ "send", IBV_WR_SEND },
		{ "send_imm", IBV_WR_SEND_WITH_IMM },
		{ "send_inv", IBV_WR_SEND_WITH_INV },
		{ "write", IBV_WR_RDMA_WRITE },
		{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
		{ "read", IBV_WR_RDMA_READ },
		{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
		{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
		{ "bind", IBV_WR_BIND_MW },
	};

	for (size_t at = 0; at < sizeof(all) / sizeof(all[0]); at++)
		if (!strcmp(name, all[at].name))
			return all[at].opcode;
	return -1;
}

static int do_post(int at)
{
	struct ibv_sge sge = gather();
	struct ibv_send_wr wr = { .wr_id = number("id", 0), .sg_list = &sge, .num_sge = sge.length ? 1 : 0 }, *bad;
	int operation = word_count > 2 ? opcode(words[2]) : -1, ah = slot("ah"), mw = slot("mw");

	if (operation < 0)
		return fail(EINVAL);
	wr.opcode = operation;
	wr.send_flags = number("flags", IBV_SEND_SIGNALED);
	if (operation == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number("inv", 0);
	else
		wr.imm_data = htonl(number("imm", 0));
	if (operation == IBV_WR_BIND_MW) {
		if (mw < 0 || !mws[mw])
			return fail(EINVAL);
		wr.num_sge = 0;
		wr.bind_mw.mw = mws[mw];
  // Each bind changes the last byte of the window's key.
		wr.bind_mw.rkey = ibv_inc_rkey(mws[mw]->rkey);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = mrs[slot("mr")], .addr = sge.addr, .length = sge.length, .mw_access_flags = number("access", 0)
		};
	} else if (qps[at]->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah < 0 ? NULL : ahs[ah];
		wr.wr.ud.remote_qpn = number("qpn", 0);
		wr.wr.ud.remote_qkey = number("qkey", 0);
	} else if (operation == IBV_WR_ATOMIC_FETCH_AND_ADD || operation == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = number("raddr", 0);
		wr.wr.atomic.rkey = number("rkey", 0);
		wr.wr.atomic.compare_add = number(operation == IBV_WR_ATOMIC_FETCH_AND_ADD ? "value" : "compare", 0);
		wr.wr.atomic.swap = number("value", 0);
	} else {
		wr.wr.rdma.remote_addr = number("raddr", 0);
		wr.wr.rdma.rkey = number("rkey", 0);
	}
	int error = ibv_post_send(qps[at], &wr, &bad);
	if (!error && operation == IBV_WR_BIND_MW)
		mws[mw]->rkey = wr.bind_mw.rkey;
	printf(error ? "error %d %s\n" : "ok %u\n", error ? (unsigned)error : mw < 0 ? 0 : mws[mw]->rkey, strerror(error));
	return 0;
}

static int do_recv(int at)
{
	struct ibv_sge sge = gather();
	struct ibv_recv_wr wr = { .wr_id = number("id", 0), .sg_list = &sge, .num_sge = sge.length ? 1 : 0 }, *bad;
	int srq = slot("srq");

	if (srq < 0 ? !qps[at] : !srqs[srq])
		return fail(EINVAL);
	return done(srq < 0 ? ibv_post_recv(qps[at], &wr, &bad) : ibv_post_srq_recv(srqs[srq], &wr, &bad));
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int do_wait(int at)
{
	int64_t deadline = now_ms() + number("ms", 1000);
	uint64_t count = number("count", 1);

	printf("ok");
	do {
		struct ibv_wc wc;
		int found = ibv_poll_cq(qps[at]->send_cq, 1, &wc);

		if (found < 0) {
			printf(" lost\n");
			return 0;
		}
		if (found == 0) {
   // Yields the processor to the device, which may be emulated on the same one.
			sched_yield();
			continue;
		}
		unsigned flags = wc.wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM);

		if (wc.wc_flags & with_inv)
			flags |= IBV_WC_WITH_INV;
		printf(" %llu:%d:%d:%u:%u:%u:%u", (unsigned long long)wc.wr_id, wc.status, wc.opcode, wc.byte_len, flags,
		       flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : ntohl(wc.imm_data), wc.src_qp);
		count--;
	} while (count > 0 && now_ms() < deadline);
	printf("\n");
	return 0;
}

static int do_state(int at)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int error = ibv_query_qp(qps[at], &attr, IBV_QP_STATE, &init);

	if (error)
		return fail(error);
	printf("ok %d\n", attr.qp_state);
	return 0;
}

static int do_fail(int at)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	return done(ibv_modify_qp(qps[at], &attr, IBV_QP_STATE));
}

static int do_destroy(int at)
{
	struct ibv_cq *cq = qps[at]->send_cq;
	int error = ibv_destroy_qp(qps[at]);

	qps[at] = NULL;
	return done(error ? error : ibv_destroy_cq(cq));
}

static const struct {
	const char *name;
	int (*run)(int at);
 // The table of the object that the first number must name, if it must exist.
	void *objects;
} commands[] = {
	{ "mr", do_mr, NULL },	       { "mw", do_mw, NULL },	      { "dereg", do_dereg, mrs },   { "fill", do_bytes, mrs },
	{ "check", do_bytes, mrs },    { "same", do_bytes, mrs },     { "put", do_word, mrs },	    { "get", do_word, mrs },
	{ "srq", do_srq, NULL },       { "qp", do_qp, NULL },	      { "connect", do_connect, qps }, { "ah", do_ah, NULL },
	{ "post", do_post, qps },      { "recv", do_recv, NULL },      { "wait", do_wait, qps },	    { "state", do_state, qps },
	{ "fail", do_fail, qps },      { "destroy", do_destroy, qps },
};

static int run(void)
{
	int at = slot(NULL);

	if (!strcmp(words[0], "open"))
		return do_open();
	for (size_t command = 0; command < sizeof(commands) / sizeof(commands[0]); command++) {
		void **objects = commands[command].objects;

		if (strcmp(words[0], commands[command].name))
			continue;
		if (at < 0 || !pd || (objects && !objects[at]) || (!strcmp(words[0], "qp") && word_count < 3))
			return fail(EINVAL);
		return commands[command].run(at);
	}
	return fail(ENOSYS);
}

static void command(void) { run(); }

int main(void)
{
	each_line(command);
	return 0;
}
