// A text interface to librdmacm: runs a test's commands on any device, and tells every event.
//
// Reads one command per line and answers each with one line: "ok ..." or "error NUMBER TEXT". Identifiers are small numbers:
// those of commands, and for requests to connect, the next number that is free. Every identifier has an event channel of
// its own, but requests stay on the channel of their listener.
//
//   id ID SPACE                            SPACE is tcp, udp, ipoib or ib (reliable connections)
//   bind ID ADDRESS PORT
//   listen ID backlog=
//   resolve ID ADDRESS PORT                sends address and route on their way; ok once both are known
//   qp ID [srq=1] [rd=]                    a queue pair with a receive posted to it
//   connect ID, accept ID                  res= depth= fc= retry= rnr= [data=HEX] [qpn=]; without qpn= that of the queue pair
//   reject ID [data=HEX]
//   disconnect ID
//   destroy ID                             its queue pair too
//   option ID LEVEL NAME value= size=
//   event ID ms=                           ok NAME STATUS id=ID [req=ID] [data=LENGTH:HEX] ...    or ok none
//   send ID seed=                          a message of 1000 bytes
//   arrived ID seed= ms=                   waits for one, and reports the first byte that differs
//   quit                                   exits, with all identifiers open
//   route ID                               ok the path that was resolved: flow=1 if there is a flow label, SELECTOR:VALUE;
//                                        not the rate, which differs with the devices
//   path ID                                ok MTU of the queue pair, its timeout and retry counts, depths, and hop limit
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "words.h"

enum { SLOTS = 64, LENGTH = 1000, GRH = 40, RESOLVE_MS = 5000 };

// An identifier, with what belongs to it.
struct end {
	struct rdma_cm_id *id;
	struct rdma_event_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	uint32_t remote_qpn, remote_qkey;
	uint8_t memory[2][GRH + LENGTH];
};

static struct end *ends[SLOTS];

static void fail(int error) { printf("error %d %s\n", error, strerror(error)); }

// Answers with the outcome of a call of librdmacm.
static void done(int result)
{
	if (result)
		fail(errno);
	else
		puts("ok");
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static size_t read_hex(const char *hex, uint8_t *bytes, size_t most)
{
	size_t length = 0;

	for (; hex && hex[0] && hex[1] && length < most; hex += 2) {
		char byte[3] = { hex[0], hex[1], 0 };

		bytes[length++] = strtoul(byte, NULL, 16);
	}
	return length;
}

static void print_hex(const char *name, const uint8_t *bytes, size_t length)
{
	if (!bytes)
		length = 0;
	printf(" %s=%zu:", name, length);
 // Data is padded with zeros to the length of its field.
	while (length && !bytes[length - 1])
		length--;
	for (size_t at = 0; at < length; at++)
		printf("%02x", bytes[at]);
}

static struct end *add(int at, struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	struct end *end = calloc(1, sizeof(*end));

	if (!end)
		abort();
	end->id = id;
	end->channel = channel;
	id->context = (void *)(intptr_t)at;
	return ends[at] = end;
}

static int free_slot(void)
{
	for (int at = 0; at < SLOTS; at++)
		if (!ends[at])
			return at;
	abort();
}

static void do_id(int at)
{
	const char *space = word_count > 2 ? words[2] : "tcp";
	enum rdma_port_space ps = !strcmp(space, "udp")	    ? RDMA_PS_UDP
				  : !strcmp(space, "ib")    ? RDMA_PS_IB
				  : !strcmp(space, "ipoib") ? RDMA_PS_IPOIB
							    : RDMA_PS_TCP;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;

	if (!channel || rdma_create_id(channel, &id, NULL, ps)) {
		fail(errno);
		return;
	}
	add(at, id, channel);
	puts("ok");
}

static struct addrinfo *address(void)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found = NULL;

	if (word_count < 4 || getaddrinfo(words[2], words[3], &hints, &found))
		return NULL;
	return found;
}

static void do_bind(struct end *end)
{
	struct addrinfo *at = address();

	if (!at) {
		fail(EINVAL);
		return;
	}
	done(rdma_bind_addr(end->id, at->ai_addr));
	freeaddrinfo(at);
}

static struct rdma_cm_event *next_event(struct end *end, int ms)
{
	struct pollfd wanted = { .fd = end->channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&wanted, 1, ms) != 1 || rdma_get_cm_event(end->channel, &event))
		return NULL;
	return event;
}

static void do_resolve(struct end *end)
{
	struct addrinfo *at = address();
	int result = at ? rdma_resolve_addr(end->id, NULL, at->ai_addr, RESOLVE_MS) : (errno = EINVAL, -1);

	freeaddrinfo(at);
	for (int step = 0; step < 2 && !result; step++) {
		struct rdma_cm_event *event = next_event(end, 2 * RESOLVE_MS);
		enum rdma_cm_event_type wanted = step ? RDMA_CM_EVENT_ROUTE_RESOLVED : RDMA_CM_EVENT_ADDR_RESOLVED;

		if (!event || event->event != wanted) {
			errno = event ? -event->status : ETIMEDOUT;
			result = -1;
		}
		if (event)
			rdma_ack_cm_event(event);
		if (!result && !step)
			result = rdma_resolve_route(end->id, RESOLVE_MS);
	}
	done(result);
}

static void do_qp(struct end *end)
{
	int is_datagram = end->id->ps == RDMA_PS_UDP || end->id->ps == RDMA_PS_IPOIB;
	struct ibv_qp_init_attr init = { .qp_type = is_datagram ? IBV_QPT_UD : IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	int result = -1;

	if (!end->id->verbs) {
		fail(ENODEV);
		return;
	}
	end->cq = ibv_create_cq(end->id->verbs, 8, NULL, NULL, 0);
	init.send_cq = init.recv_cq = end->cq;
	if (end->cq)
		result = rdma_create_qp(end->id, NULL, &init);
	if (!result) {
		struct ibv_sge sge = { .addr = (uintptr_t)end->memory[1], .length = GRH + LENGTH };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		end->mr = ibv_reg_mr(end->id->pd, end->memory, sizeof(end->memory), IBV_ACCESS_LOCAL_WRITE);
		if (end->mr) {
			sge.lkey = end->mr->lkey;
			errno = ibv_post_recv(end->id->qp, &wr, &bad);
		}
		result = !end->mr || errno;
	}
	done(result);
}

static struct rdma_conn_param parameters(uint8_t data[256])
{
	return (struct rdma_conn_param){
		.private_data = text("data") ? data : NULL,
		.private_data_len = read_hex(text("data"), data, 255),
		.responder_resources = number("res", 1),
		.initiator_depth = number("depth", 1),
		.flow_control = number("fc", 0),
		.retry_count = number("retry", 7),
		.rnr_retry_count = number("rnr", 7),
		.qp_num = number("qpn", 0),
	};
}

static void do_connect(struct end *end)
{
	uint8_t data[256];

	// librdmacm would look for the limits of the device.
	if (!end->id->verbs) {
		fail(ENODEV);
		return;
	}
	struct rdma_conn_param param = parameters(data);

	done(!strcmp(words[0], "connect") ? rdma_connect(end->id, &param) : rdma_accept(end->id, &param));
}

static void do_reject(struct end *end)
{
	uint8_t data[256];
	uint8_t length = read_hex(text("data"), data, 255);

	done(rdma_reject(end->id, length ? data : NULL, length));
}

static void do_destroy(int at)
{
	struct end *end = ends[at];
	int is_own = 1;

	for (int other = 0; other < SLOTS; other++)
		is_own &= other == at || !ends[other] || ends[other]->channel != end->channel;
	if (end->ah)
		ibv_destroy_ah(end->ah);
	if (end->id->qp)
		rdma_destroy_qp(end->id);
	if (end->mr)
		ibv_dereg_mr(end->mr);
	if (end->cq)
		ibv_destroy_cq(end->cq);
	int result = rdma_destroy_id(end->id);

	if (is_own)
		rdma_destroy_event_channel(end->channel);
	free(end);
	ends[at] = NULL;
	done(result);
}

static void print_connection(const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *conn = &event->param.conn;

	printf(" res=%d depth=%d fc=%d retry=%d rnr=%d srq=%d", conn->responder_resources, conn->initiator_depth,
	       conn->flow_control, conn->retry_count, conn->rnr_retry_count, conn->srq);
	print_hex("data", conn->private_data, conn->private_data_len);
}

// What a datagram service was told of its client, or a client of its service.
static void take_datagram(struct end *end, struct rdma_cm_event *event)
{
	struct rdma_ud_param *ud = &event->param.ud;

	print_hex("data", ud->private_data, ud->private_data_len);
	if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		return;
	printf(" qkey=%#x grh=%d hops=%d", ud->qkey, ud->ah_attr.is_global, ud->ah_attr.grh.hop_limit);
	end->ah = ibv_create_ah(end->id->pd, &ud->ah_attr);
	end->remote_qpn = ud->qp_num;
	end->remote_qkey = ud->qkey;
}

static void do_event(struct end *end)
{
	struct rdma_cm_event *event = next_event(end, number("ms", 1000));

	if (!event) {
		puts("ok none");
		return;
	}
	printf("ok %s %d id=%d", rdma_event_str(event->event) + strlen("RDMA_CM_EVENT_"), event->status,
	       (int)(intptr_t)event->id->context);
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		int at = free_slot();

		add(at, event->id, end->channel);
		printf(" req=%d", at);
	}
	struct end *whose = ends[(intptr_t)event->id->context];

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		if (event->id->ps == RDMA_PS_UDP)
			take_datagram(whose, event);
		else
			print_connection(event);
	default:
		break;
	}
	puts("");
	rdma_ack_cm_event(event);
}

static uint8_t pattern(uint32_t seed, uint32_t at) { return (at * 7 + seed * 13) ^ at >> 8; }

static void do_send(struct end *end)
{
	uint8_t *bytes = end->memory[0];
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = LENGTH, .lkey = end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;

	for (int at = 0; at < LENGTH; at++)
		bytes[at] = pattern(number("seed", 0), at);
	if (end->id->ps == RDMA_PS_UDP) {
		wr.wr.ud.ah = end->ah;
		wr.wr.ud.remote_qpn = end->remote_qpn;
		wr.wr.ud.remote_qkey = end->remote_qkey;
	}
	errno = ibv_post_send(end->id->qp, &wr, &bad);
	done(errno);
}

static void do_arrived(struct end *end)
{
	int64_t deadline = now_ms() + number("ms", 5000);
	int offset = end->id->ps == RDMA_PS_UDP ? GRH : 0;
	struct ibv_wc wc;

	for (;;) {
		int found = ibv_poll_cq(end->cq, 1, &wc);

		if (found < 0 || (found == 0 && now_ms() > deadline)) {
			fail(ETIMEDOUT);
			return;
		}
		if (found == 1 && wc.status) {
			printf("error %d %s\n", EIO, ibv_wc_status_str(wc.status));
			return;
		}
		if (found == 1 && wc.opcode == IBV_WC_RECV)
			break;
		sched_yield();
	}
	for (int at = 0; at < LENGTH; at++)
		if (end->memory[1][offset + at] != pattern(number("seed", 0), at)) {
			printf("error %d byte %d of %u\n", EBADMSG, at, wc.byte_len);
			return;
		}
	printf("ok %u\n", wc.byte_len - offset);
}

static void do_path(struct end *end)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int error = ibv_query_qp(end->id->qp, &attr, IBV_QP_STATE, &init);

	if (error) {
		fail(error);
		return;
	}
	printf("ok mtu=%d timeout=%d retry=%d rnr=%d rd=%d res=%d hops=%d\n", 128 << attr.path_mtu, attr.timeout, attr.retry_cnt,
	       attr.rnr_retry, attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.ah_attr.grh.hop_limit);
}

static void do_route(struct end *end)
{
	struct rdma_route *route = &end->id->route;
	struct ibv_sa_path_rec *path = route->path_rec;

	printf("ok paths=%d", route->num_paths);
	if (path && route->num_paths)
		printf(" from=%d to=%d flow=%d hops=%d class=%d sl=%d reversible=%d pkey=%#x mtu=%d:%d "
		       "lifetime=%d:%d",
		       !memcmp(&path->sgid, &route->addr.addr.ibaddr.sgid, sizeof(path->sgid)),
		       !memcmp(&path->dgid, &route->addr.addr.ibaddr.dgid, sizeof(path->dgid)), !!path->flow_label,
		       path->hop_limit, path->traffic_class, path->sl, path->reversible, ntohs(path->pkey),
		       path->mtu_selector, path->mtu, path->packet_life_time_selector,
		       path->packet_life_time);
	puts("");
}

static void do_option(struct end *end)
{
	uint64_t value = number("value", 0);

	if (word_count < 4)
		fail(EINVAL);
	else
		done(rdma_set_option(end->id, atoi(words[2]), atoi(words[3]), &value, number("size", 4)));
}

static void do_listen(struct end *end) { done(rdma_listen(end->id, number("backlog", 8))); }

static void do_disconnect(struct end *end) { done(rdma_disconnect(end->id)); }

static const struct {
	const char *name;
	void (*run)(struct end *end);
	int needs_qp;
} commands[] = {
	{ "bind", do_bind, 0 },		  { "listen", do_listen, 0 }, { "resolve", do_resolve, 0 },
	{ "qp", do_qp, 0 },		  { "connect", do_connect, 0 }, { "accept", do_connect, 0 },
	{ "reject", do_reject, 0 },	  { "disconnect", do_disconnect, 0 }, { "option", do_option, 0 },
	{ "event", do_event, 0 },	  { "send", do_send, 1 },     { "arrived", do_arrived, 1 },
	{ "path", do_path, 1 },		  { "route", do_route, 0 },
};

static void run(void)
{
	int at = word_count > 1 ? atoi(words[1]) : -1;

	if (at < 0 || at >= SLOTS || !ends[at] == !!strcmp(words[0], "id")) {
		fail(EINVAL);
		return;
	}
	if (!strcmp(words[0], "id")) {
		do_id(at);
		return;
	}
	if (!strcmp(words[0], "destroy")) {
		do_destroy(at);
		return;
	}
	for (size_t command = 0; command < sizeof(commands) / sizeof(commands[0]); command++)
		if (!strcmp(words[0], commands[command].name)) {
			if (commands[command].needs_qp && (!ends[at]->id->qp || !ends[at]->mr))
				fail(EINVAL);
			else
				commands[command].run(ends[at]);
			return;
		}
	fail(ENOSYS);
}

int main(void)
{
	each_line(run);
	return 0;
}
