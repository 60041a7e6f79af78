/* Meets a bug of rnic in the middle of a call, and in rnic's own thread: the clock fails, which never happens, and which
 * rnic does not expect. The device fails, its calls return EIO, nothing waits for a lock forever, and the process goes
 * on: after closing the device it opens it again. */
#define _GNU_SOURCE
#include "common.h"
#include "clock.h"
#include <poll.h>

static char buffer[4096];

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq, *other;
	struct ibv_cq_ex *reader;
	struct ibv_mr *mr;
	struct ibv_qp *a, *b;
	struct ibv_qp_ex *builder;
};

/* Opens the device anew. The one that failed stays open for a moment if rnic's thread is still busy with the failure. */
static struct ibv_context *open_intact(void) {
	for (int i = 0; i < 3000; i++) {
		int count;
		struct ibv_device **list = ibv_get_device_list(&count);
		struct ibv_context *context = ibv_open_device(list[0]);
		struct ibv_cq *cq = context ? ibv_create_cq(context, 1, NULL, NULL, 0) : NULL;
		ibv_free_device_list(list);
		if (cq) {
			check(ibv_destroy_cq(cq) == 0, "an unused queue");
			return context;
		}
		if (context) {
			check(errno == EIO && ibv_close_device(context) == 0, "the device that failed");
		}
		usleep(10000);
	}
	printf("FAILED: the device cannot be opened again\n");
	exit(1);
}

/* An open device, with a queue pair that builds its work requests by calls, connected to another one. */
static struct device begin(void) {
	struct device d = {.context = open_intact()};
	struct ibv_cq_init_attr_ex reader = {.cqe = 4};
	d.pd = ibv_alloc_pd(d.context);
	d.cq = ibv_create_cq(d.context, 64, NULL, NULL, 0);
	d.other = ibv_create_cq(d.context, 64, NULL, NULL, 0);
	d.reader = ibv_create_cq_ex(d.context, &reader);
	d.mr = ibv_reg_mr(d.pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = d.cq,
		.recv_cq = d.other,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2},
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = d.pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	d.a = ibv_create_qp_ex(d.context, &init);
	check(d.pd && d.cq && d.other && d.reader && d.mr && d.a, "objects");
	d.builder = ibv_qp_to_qp_ex(d.a);
	d.b = create_rc(d.pd, d.cq);
	connect_to(d.a, d.b->qp_num);
	connect_to(d.b, d.a->qp_num);
	REFUSED(post_write(d.a, d.mr, d.mr, 8), 0);
	check(wait_for(d.cq) == IBV_WC_SUCCESS, "a WRITE");
	struct ibv_recv_wr *bad, receive = {.wr_id = 5};
	REFUSED(ibv_post_recv(d.a, &receive, &bad), 0);
	return d;
}

static void end(struct device *d) {
	REFUSED(ibv_destroy_qp(d->a), 0);
	REFUSED(ibv_destroy_qp(d->b), 0);
	REFUSED(ibv_dereg_mr(d->mr), 0);
	REFUSED(ibv_destroy_cq(d->cq), 0);
	REFUSED(ibv_destroy_cq(d->other), 0);
	REFUSED(ibv_destroy_cq(ibv_cq_ex_to_cq(d->reader)), 0);
	REFUSED(ibv_dealloc_pd(d->pd), 0);
	REFUSED(ibv_close_device(d->context), 0);
}

static int build(struct device *d) {
	ibv_wr_start(d->builder);
	ibv_wr_rdma_write(d->builder, d->mr->rkey, (uintptr_t)buffer);
	ibv_wr_set_sge(d->builder, d->mr->lkey, (uintptr_t)buffer, 8);
	return ibv_wr_complete(d->builder);
}

static void *calls(void *argument) {
	struct device *d = argument;
	struct ibv_send_wr *bad_send = NULL, sends[2] = {{.next = &sends[1], .opcode = IBV_WR_SEND}, {.opcode = IBV_WR_SEND}};
	struct ibv_recv_wr *bad_receive = NULL, receive = {.wr_id = 6};
	struct ibv_poll_cq_attr poll = {0};
	struct ibv_wc wc;
	REFUSED(ibv_post_send(d->a, sends, &bad_send), EIO);
	check(bad_send == sends, "the first is the bad one");
	REFUSED(ibv_post_recv(d->a, &receive, &bad_receive), EIO);
	check(bad_receive == &receive, "the first is the bad one");
	REFUSED(build(d), EIO);
	REFUSED(build(d), EIO);
	/* What was posted is flushed. */
	check(ibv_poll_cq(d->other, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5, "a flush");
	while (ibv_poll_cq(d->cq, 1, &wc) > 0) {
		check(wc.status == IBV_WC_WR_FLUSH_ERR || wc.status == IBV_WC_SUCCESS, "a flush, or what was done before");
	}
	errno = 0;
	check(ibv_poll_cq(d->cq, 1, &wc) < 0 && errno == EIO, "nothing can come any more");
	REFUSED(ibv_start_poll(d->reader, &poll), EIO);
	REFUSED(ibv_start_poll(d->reader, &poll), EIO);
	REFUSED(ibv_req_notify_cq(d->cq, 0), EIO);
	NONE(ibv_create_cq(d->context, 4, NULL, NULL, 0), EIO);
	NONE(ibv_reg_mr(d->pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE), EIO);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	REFUSED(ibv_modify_qp(d->a, &attr, IBV_QP_STATE), EIO);
	struct ibv_qp_init_attr init;
	REFUSED(ibv_query_qp(d->a, &attr, IBV_QP_STATE, &init), 0);
	check(attr.qp_state == IBV_QPS_ERR, "the queue pair is in ERR");
	return NULL;
}

/* Checks the device after the failure, from another thread, which might wait for a lock forever. */
static void has_failed(struct device *d, const char *where) {
	struct pollfd fd = {.fd = d->context->async_fd, .events = POLLIN};
	struct ibv_async_event event;
	if (poll(&fd, 1, 30000) != 1) {
		printf("FAILED: %s: no event\n", where);
		exit(1);
	}
	check(ibv_get_async_event(d->context, &event) == 0, "an event");
	if (event.event_type != IBV_EVENT_DEVICE_FATAL) {
		printf("FAILED: %s: the event is %s\n", where, ibv_event_type_str(event.event_type));
		failures++;
	}
	ibv_ack_async_event(&event);
	pthread_t thread;
	struct timespec limit;
	pthread_create(&thread, NULL, calls, d);
	syscall(SYS_clock_gettime, CLOCK_REALTIME, &limit);
	limit.tv_sec += 30;
	if (pthread_timedjoin_np(thread, NULL, &limit) != 0) {
		printf("FAILED: %s: a call waits forever\n", where);
		exit(1);
	}
}

int main(void) {
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD};
	struct ibv_poll_cq_attr poll = {0};
	struct ibv_wc wc;

	struct device d = begin();
	MEETS_BUG(ibv_modify_qp(d.a, &attr, IBV_QP_STATE));
	has_failed(&d, "a call that takes the lock");
	end(&d);

	d = begin();
	MEETS_BUG(post_write(d.a, d.mr, d.mr, 8));
	has_failed(&d, "a post");
	end(&d);

	d = begin();
	MEETS_BUG(build(&d));
	has_failed(&d, "the end of a batch");
	end(&d);

	d = begin();
	MEETS_BUG(ibv_poll_cq(d.cq, 1, &wc));
	has_failed(&d, "a poll");
	end(&d);

	d = begin();
	MEETS_BUG(ibv_start_poll(d.reader, &poll));
	has_failed(&d, "the start of a poll");
	end(&d);

	/* The program does not poll, so rnic's thread serves the device. */
	d = begin();
	__atomic_store_n(&fails_in_thread, 1, __ATOMIC_RELAXED);
	REFUSED(post_write(d.a, d.mr, d.mr, 8), 0);
	has_failed(&d, "the thread");
	end(&d);

	/* After all this, the device works. */
	d = begin();
	end(&d);
	printf("%d failures\n", failures);
	return failures != 0;
}
