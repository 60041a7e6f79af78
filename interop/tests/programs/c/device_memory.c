/* Device memory: what is copied to an offset is what a region of that part sends, and the other way round. */
#include "common.h"

enum { BLOCK = 4096, OFFSET = 256, PART = 64 };

static int write_to(struct ibv_qp *qp, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey) {
	struct ibv_sge sge = {.addr = from, .length = PART, .lkey = lkey};
	struct ibv_send_wr *bad, wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = to, .rkey = rkey},
	};
	return ibv_post_send(qp, &wr, &bad);
}

int main(void) {
	static char buffer[BLOCK], found[BLOCK];
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_alloc_dm_attr attr = {.length = BLOCK};
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	check(pd && cq && mr && dm, "objects");
	if (!dm || !mr) {
		return 1;
	}
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_mr *part = ibv_reg_dm_mr(pd, dm, OFFSET, PART, rights);
	check(part != NULL, "a region of a part");
	NONE(ibv_reg_dm_mr(pd, dm, BLOCK - PART + 1, PART, rights), EINVAL);
	NONE(ibv_reg_dm_mr(pd, dm, 0, PART, rights & ~IBV_ACCESS_ZERO_BASED), EINVAL);
	REFUSED(ibv_free_dm(dm), EBUSY);

	/* The block is zero around the part. */
	memset(found, 0, sizeof found);
	REFUSED(ibv_memcpy_to_dm(dm, 0, found, BLOCK), 0);
	for (int i = 0; i < PART; i++) {
		found[i] = i + 1;
	}
	REFUSED(ibv_memcpy_to_dm(dm, OFFSET, found, PART), 0);
	struct ibv_qp *a = create_rc(pd, cq), *b = create_rc(pd, cq);
	connect_to(a, b->qp_num);
	connect_to(b, a->qp_num);
	REFUSED(write_to(a, 0, part->lkey, (uintptr_t)buffer, mr->rkey), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS && !memcmp(buffer, found, PART), "the part is sent");

	memset(buffer, 0x5a, PART);
	REFUSED(write_to(a, (uintptr_t)buffer, mr->lkey, 0, part->rkey), 0);
	check(wait_for(cq) == IBV_WC_SUCCESS, "the part is written");
	REFUSED(ibv_memcpy_from_dm(found, dm, 0, BLOCK), 0);
	for (int i = 0; i < BLOCK; i++) {
		int inside = i >= OFFSET && i < OFFSET + PART;
		if (found[i] != (inside ? 0x5a : 0)) {
			printf("FAILED: byte %d is %d\n", i, found[i]);
			failures++;
			break;
		}
	}
	REFUSED(write_to(a, (uintptr_t)buffer, mr->lkey, 1, part->rkey), 0);
	check(wait_for(cq) == IBV_WC_REM_ACCESS_ERR, "one byte beyond the part");
	REFUSED(ibv_destroy_qp(a), 0);
	REFUSED(ibv_destroy_qp(b), 0);
	REFUSED(ibv_dereg_mr(part), 0);
	REFUSED(ibv_free_dm(dm), 0);
	printf("%d failures\n", failures);
	return failures != 0;
}
