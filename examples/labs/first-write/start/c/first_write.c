/* The first WRITE. Lab of $(student).
 *
 * Two queue pairs of one device are connected to each other, so that one program can be both sides. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT "hello from $(student), number $(number)"
#define OFFSET $(offset)
#define REGION $(region)

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    if (!qp)
        fail("ibv_create_qp");
    return qp;
}

/* Brings a queue pair from RESET to RTS: what each state needs is in ibv_modify_qp(3). */
static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer, const union ibv_gid *gid, int gid_index)
{
    struct ibv_qp_attr init = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("INIT");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = *gid, .sgid_index = gid_index, .hop_limit = 64}},
    };
    if (ibv_modify_qp(qp, &rtr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("RTR");
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    if (ibv_modify_qp(qp, &rts,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                          IBV_QP_MAX_QP_RD_ATOMIC))
        fail("RTS");
}

int main(void)
{
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices || count == 0)
        fail("no device: run this with `rnic run` or `rnic lab run`");
    struct ibv_context *context = ibv_open_device(devices[0]);
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = pd ? ibv_create_cq(context, 16, NULL, NULL, 0) : NULL;
    union ibv_gid gid;
    if (!cq || ibv_query_gid(context, 1, 0, &gid))
        fail("cannot open the device");
    struct ibv_qp *left = create(pd, cq), *right = create(pd, cq);
    connect_to(left, right, &gid, 0);
    connect_to(right, left, &gid, 0);

    static char source[REGION], target[REGION];
    strcpy(source, TEXT);
    struct ibv_mr *local = ibv_reg_mr(pd, source, sizeof source, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *remote = ibv_reg_mr(pd, target, sizeof target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!local || !remote)
        fail("ibv_reg_mr");
    printf("the remote region begins at %p\n", (void *)target);

    /* TODO 1: WRITE the text (without its final 0) from `local` to `remote`, at OFFSET. Wait for the completion: poll until
     * there is one. Print ibv_wc_status_str of its status, and the text that is now in `target`. */

    /* TODO 2: Put another text of the same length into the local region, and WRITE it with a remote key that does not exist. Print
     * the status of that completion, and once more the text in `target`: which of the two is it? */

    printf("nothing was written yet: %s\n", target + OFFSET);
    return 0;
}
