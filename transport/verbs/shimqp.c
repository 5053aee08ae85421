//go:build verbs && cgo && linux

// Completion queues and queue pairs.

#include <stddef.h>

#include "shimlib.h"

_Static_assert(sizeof(struct vb_send_wr) == 64 && offsetof(struct vb_send_wr, rkey) == VB_OFF_SEND_RKEY &&
	offsetof(struct vb_send_wr, sges) == VB_OFF_SEND_SGES && offsetof(struct vb_send_wr, flags) == VB_OFF_SEND_FLAGS, "sendWR");
_Static_assert(sizeof(struct vb_recv_wr) == 16, "recvWR");
_Static_assert(sizeof(struct vb_wc) == 32 && offsetof(struct vb_wc, inv) == VB_OFF_WC_INV && offsetof(struct vb_wc, recv) == VB_OFF_WC_RECV, "workComp");
// Arrays of these are the adapter's as they come from Go.
_Static_assert(sizeof(struct vb_sge) == sizeof(struct ibv_sge) && offsetof(struct ibv_sge, addr) == 0 &&
	offsetof(struct ibv_sge, length) == 8 && offsetof(struct ibv_sge, lkey) == 12, "sge");
_Static_assert(VB_FENCE == (int)IBV_SEND_FENCE && VB_SIGNALED == (int)IBV_SEND_SIGNALED && VB_SOLICITED == (int)IBV_SEND_SOLICITED &&
	VB_INLINE == (int)IBV_SEND_INLINE, "flags");

// Requests are linked and completions translated on the stack, so many at a time.
enum { CHUNK = 64 };

int vb_create_channel(uintptr_t dev, uintptr_t *ch, int *fd)
{
	struct ibv_comp_channel *c;
	int rc;

	errno = 0;
	if (!(c = lib.p_ibv_create_comp_channel((struct ibv_context *)dev)))
		return vb_failed();
	if ((rc = vb_nonblocking(c->fd))) {
		lib.p_ibv_destroy_comp_channel(c);
		return rc;
	}
	*ch = (uintptr_t)c;
	*fd = c->fd;
	return 0;
}

int vb_destroy_channel(uintptr_t ch)
{
	return vb_result(lib.p_ibv_destroy_comp_channel((struct ibv_comp_channel *)ch));
}

int vb_create_cq(uintptr_t dev, int entries, uintptr_t ch, uintptr_t *cq, int *size)
{
	static unsigned int turn; // interrupts of queues go round the adapter's vectors
	struct ibv_context *ctx = (struct ibv_context *)dev;
	int vector = ctx->num_comp_vectors > 1 ? __atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % ctx->num_comp_vectors : 0;
	struct ibv_cq *c;

	errno = 0;
	if (!(c = lib.p_ibv_create_cq(ctx, entries, NULL, (struct ibv_comp_channel *)ch, vector)))
		return vb_failed();
	*cq = (uintptr_t)c;
	*size = c->cqe;
	return 0;
}

int vb_destroy_cq(uintptr_t cq)
{
	return vb_result(lib.p_ibv_destroy_cq((struct ibv_cq *)cq));
}

int vb_arm(uintptr_t cq)
{
	return vb_result(ibv_req_notify_cq((struct ibv_cq *)cq, 0));
}

// A channel has one queue, which gives one event for each time that it is armed, and is armed again when that was taken: a second
// read would be a system call to hear that there is no more.
int vb_events(uintptr_t ch)
{
	struct ibv_cq *cq;
	void *context;

	errno = 0;
	if (lib.p_ibv_get_cq_event((struct ibv_comp_channel *)ch, &cq, &context))
		return errno == EAGAIN ? 0 : vb_failed();
	lib.p_ibv_ack_cq_events(cq, 1);
	return 1;
}

int vb_create_qp(uintptr_t id, uintptr_t pd, uintptr_t cq, struct vb_caps *caps, uintptr_t *qp, uint32_t *num)
{
	struct rdma_cm_id *c = (struct rdma_cm_id *)id;
	struct ibv_qp_init_attr a = {
		.send_cq = (struct ibv_cq *)cq,
		.recv_cq = (struct ibv_cq *)cq,
		.cap = {
			.max_send_wr = caps->sends, .max_recv_wr = caps->recvs, .max_send_sge = caps->send_sge,
			.max_recv_sge = caps->recv_sge, .max_inline_data = caps->inline_data,
		},
		.qp_type = IBV_QPT_RC,
	};
	int rc;

	errno = 0;
	if ((rc = vb_result(lib.p_rdma_create_qp(c, (struct ibv_pd *)pd, &a))))
		return rc;
	caps->sends = a.cap.max_send_wr;
	caps->recvs = a.cap.max_recv_wr;
	caps->send_sge = a.cap.max_send_sge;
	caps->recv_sge = a.cap.max_recv_sge;
	caps->inline_data = a.cap.max_inline_data;
	*qp = (uintptr_t)c->qp;
	*num = c->qp->qp_num;
	return 0;
}

int vb_error_qp(uintptr_t qp)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	return vb_result(lib.p_ibv_modify_qp((struct ibv_qp *)qp, &a, IBV_QP_STATE));
}

// The id forgets its queue pair first: the library follows id->qp while it takes an event.
int vb_destroy_qp(uintptr_t id)
{
	struct rdma_cm_id *c = (struct rdma_cm_id *)id;
	struct vb_cm_channel *ch = c->context;
	struct ibv_qp *qp;
	int rc;

	pthread_mutex_lock(&ch->lock);
	qp = c->qp;
	c->qp = NULL;
	pthread_mutex_unlock(&ch->lock);
	if (!qp)
		return 0;
	if ((rc = vb_result(lib.p_ibv_destroy_qp(qp)))) {
		pthread_mutex_lock(&ch->lock);
		c->qp = qp;
		pthread_mutex_unlock(&ch->lock);
	}
	return rc;
}

static int translate(const struct vb_send_wr *w, struct ibv_send_wr *to)
{
	static const enum ibv_wr_opcode opcodes[] = {
		[VB_SEND] = IBV_WR_SEND, [VB_SEND_INV] = IBV_WR_SEND_WITH_INV, [VB_WRITE] = IBV_WR_RDMA_WRITE,
		[VB_READ] = IBV_WR_RDMA_READ, [VB_BIND] = IBV_WR_BIND_MW, [VB_LOCAL_INV] = IBV_WR_LOCAL_INV,
	};

	if (w->op < VB_SEND || w->op > VB_LOCAL_INV)
		return EINVAL;
	memset(to, 0, sizeof(*to));
	to->wr_id = w->id;
	to->opcode = opcodes[w->op];
	to->send_flags = w->flags;
	switch (w->op) {
	case VB_WRITE:
	case VB_READ:
		to->wr.rdma.remote_addr = w->remote_addr;
		to->wr.rdma.rkey = w->rkey;
		break;
	case VB_SEND_INV:
		to->wr.rdma.rkey = w->inv; // siw's library looks here
		to->invalidate_rkey = w->inv;
		break;
	case VB_LOCAL_INV:
		to->invalidate_rkey = w->inv;
		break;
	case VB_BIND:
		to->bind_mw.mw = (struct ibv_mw *)(uintptr_t)w->mw;
		to->bind_mw.rkey = w->rkey;
		to->bind_mw.bind_info.mr = (struct ibv_mr *)(uintptr_t)w->mr;
		to->bind_mw.bind_info.addr = w->bind_addr;
		to->bind_mw.bind_info.length = w->bind_len;
		to->bind_mw.bind_info.mw_access_flags = w->bind_access;
		break;
	}
	return 0;
}

struct vb_posted vb_post_send(uintptr_t qp, const struct vb_send_wr *wrs, int n, const struct vb_sge *sges, int nsges)
{
	struct ibv_send_wr list[CHUNK], *bad;
	struct vb_posted done = {0, 0};

	while (done.n < n && !done.error) {
		int part = 0, took, rc, i;

		while (part < CHUNK && done.n + part < n) {
			const struct vb_send_wr *w = &wrs[done.n + part];

			done.error = w->sges > nsges ? EINVAL : translate(w, &list[part]);
			if (done.error)
				break;
			list[part].sg_list = w->sges ? (struct ibv_sge *)sges : NULL;
			list[part].num_sge = w->sges;
			sges += w->sges;
			nsges -= w->sges;
			if (part)
				list[part - 1].next = &list[part];
			part++;
		}
		if (!part)
			break; // what came before a wrong request is posted
		bad = NULL;
		rc = vb_result(ibv_post_send((struct ibv_qp *)qp, list, &bad));
		took = part;
		if (rc) {
			done.error = -rc;
			took = bad >= list && bad < list + part ? (int)(bad - list) : 0;
		}
		// rxe's and mlx5's libraries take the window's old key from here at the next bind.
		for (i = 0; i < took; i++)
			if (list[i].opcode == IBV_WR_BIND_MW)
				list[i].bind_mw.mw->rkey = list[i].bind_mw.rkey;
		done.n += took;
	}
	return done;
}

struct vb_posted vb_post_recv(uintptr_t qp, const struct vb_recv_wr *wrs, int n, const struct vb_sge *sges, int nsges)
{
	struct ibv_recv_wr list[CHUNK], *bad;
	struct vb_posted done = {0, 0};

	while (done.n < n && !done.error) {
		int part = 0, took, rc;

		while (part < CHUNK && done.n + part < n) {
			const struct vb_recv_wr *w = &wrs[done.n + part];

			if (w->sges > (uint32_t)nsges) {
				done.error = EINVAL;
				break;
			}
			list[part].wr_id = w->id;
			list[part].next = NULL;
			list[part].sg_list = w->sges ? (struct ibv_sge *)sges : NULL;
			list[part].num_sge = w->sges;
			sges += w->sges;
			nsges -= w->sges;
			if (part)
				list[part - 1].next = &list[part];
			part++;
		}
		if (!part)
			break;
		bad = NULL;
		rc = vb_result(ibv_post_recv((struct ibv_qp *)qp, list, &bad));
		took = part;
		if (rc) {
			done.error = -rc;
			took = bad >= list && bad < list + part ? (int)(bad - list) : 0;
		}
		done.n += took;
	}
	return done;
}

static uint8_t op_of(enum ibv_wc_opcode o)
{
	switch (o) {
	case IBV_WC_SEND:
		return VB_SEND;
	case IBV_WC_RDMA_WRITE:
		return VB_WRITE;
	case IBV_WC_RDMA_READ:
		return VB_READ;
	case IBV_WC_BIND_MW:
		return VB_BIND;
	case IBV_WC_LOCAL_INV:
		return VB_LOCAL_INV;
	default:
		return 0;
	}
}

// What a Send with Invalidate named. rxe's kernel sets its own flag, which is IBV_WC_IP_CSUM_OK here, instead of
// IBV_WC_WITH_INV; the field was zeroed before, and drivers that mean a checksum leave it so.
static uint32_t invalidated(const struct ibv_wc *w)
{
	if (!(w->opcode & IBV_WC_RECV) || w->wc_flags & IBV_WC_WITH_IMM || !(w->wc_flags & (IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK)))
		return 0;
	return w->invalidated_rkey;
}

int vb_poll(uintptr_t cq, struct vb_wc *wcs, int n)
{
	struct ibv_wc w[CHUNK];
	int done = 0;

	while (done < n) {
		int want = n - done < CHUNK ? n - done : CHUNK, got, i;

		for (i = 0; i < want; i++)
			w[i].invalidated_rkey = 0;
		got = ibv_poll_cq((struct ibv_cq *)cq, want, w);
		if (got < 0)
			return done ? done : vb_result(got);
		for (i = 0; i < got; i++) {
			struct vb_wc *to = &wcs[done + i];
			int good = w[i].status == IBV_WC_SUCCESS;

			to->id = w[i].wr_id;
			to->status = w[i].status;
			to->vendor = w[i].vendor_err;
			to->qp_num = w[i].qp_num;
			to->recv = good && w[i].opcode & IBV_WC_RECV;
			to->op = good ? op_of(w[i].opcode) : 0;
			to->bytes = good ? w[i].byte_len : 0;
			to->inv = good ? invalidated(&w[i]) : 0;
			to->unused = 0;
		}
		done += got;
		if (got < want)
			break;
	}
	return done;
}
