//go:build verbs && cgo && linux

// The libraries, adapters and memory. shimqp.c has queues, shimcm.c connections.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#include "shimlib.h"

struct vb_calls lib;

static void found(void *handle, char *path, size_t size)
{
	struct link_map *map = NULL;

	if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map)
		snprintf(path, size, "%s", map->l_name);
}

static void *call(void *handle, const char *name, const char *version)
{
	void *p = dlvsym(handle, name, version);

	return p ? p : dlsym(handle, name);
}

#define VB_CALL(handle, name, version, which) \
	if (!(lib.p_##name = (__typeof__(lib.p_##name))call(handle, #name, version))) { \
		out->missing = which; \
		snprintf(out->error, sizeof(out->error), "it has no %s", #name); \
		return -1; \
	}
#define VB_VERBS_1_1(name) VB_CALL(verbs, name, "IBVERBS_1.1", VB_LIB_VERBS)
#define VB_VERBS_1_0(name) VB_CALL(verbs, name, "IBVERBS_1.0", VB_LIB_VERBS)
#define VB_CM(name) VB_CALL(cm, name, "RDMACM_1.0", VB_LIB_CM)

static void *opened(const char *name, int which, struct vb_libs *out)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		const char *why = dlerror();

		out->missing = which;
		snprintf(out->error, sizeof(out->error), "%s", why ? why : "unknown error");
	}
	return handle;
}

int vb_open(struct vb_libs *out)
{
	void *verbs, *cm;

	if (!(verbs = opened("libibverbs.so.1", VB_LIB_VERBS, out)) || !(cm = opened("librdmacm.so.1", VB_LIB_CM, out)))
		return -1;
	VB_VERBS_CALLS(VB_VERBS_1_1)
	VB_VERBS_CALLS_1_0(VB_VERBS_1_0)
	VB_CM_CALLS(VB_CM)
	lib.query_gid_table = (__typeof__(lib.query_gid_table))dlsym(verbs, "_ibv_query_gid_table");
	found(verbs, out->verbs, sizeof(out->verbs));
	found(cm, out->cm, sizeof(out->cm));
	return 0;
}

int vb_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	return 0;
}

// An adapter stays open for as long as a list that has it is not freed. A list that brings nothing new is freed; the others
// are kept to the end of the process, one for each time that an adapter came.
int vb_devices(uintptr_t *devs, int max)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct ibv_context **known;
	static int n_known;
	struct ibv_context **list, **more;
	int n = 0, news = 0, i, j;

	pthread_mutex_lock(&lock);
	errno = 0;
	if (!(list = lib.p_rdma_get_devices(&n))) {
		int err = errno;

		pthread_mutex_unlock(&lock);
		return err == ENODEV ? 0 : err ? -err : -EIO;
	}
	for (i = 0; i < n; i++) {
		for (j = 0; j < n_known && known[j] != list[i]; j++)
			;
		if (j == n_known && (more = realloc(known, (n_known + 1) * sizeof(*known)))) {
			known = more;
			known[n_known++] = list[i];
			news = 1;
		}
		if (i < max)
			devs[i] = (uintptr_t)list[i];
	}
	if (!news)
		lib.p_rdma_free_devices(list);
	pthread_mutex_unlock(&lock);
	return n;
}

int vb_device(uintptr_t dev, struct vb_device *out)
{
	struct ibv_context *ctx = (struct ibv_context *)dev;
	struct ibv_device_attr a;
	int rc = vb_result(lib.p_ibv_query_device(ctx, &a));

	if (rc)
		return rc;
	snprintf(out->name, sizeof(out->name), "%s", ctx->device->name);
	snprintf(out->firmware, sizeof(out->firmware), "%s", a.fw_ver);
	out->guid = be64toh(a.node_guid);
	out->flags = a.device_cap_flags;
	out->max_mr_size = a.max_mr_size;
	out->vendor = a.vendor_id;
	out->part = a.vendor_part_id;
	out->transport = ctx->device->transport_type;
	out->ports = a.phys_port_cnt;
	out->max_qp = a.max_qp;
	out->max_qp_wr = a.max_qp_wr;
	out->max_sge = a.max_sge;
	out->max_sge_rd = a.max_sge_rd;
	out->max_cq = a.max_cq;
	out->max_cqe = a.max_cqe;
	out->max_mr = a.max_mr;
	out->max_pd = a.max_pd;
	out->max_mw = a.max_mw;
	out->max_read_in = a.max_qp_rd_atom;
	out->max_read_out = a.max_qp_init_rd_atom;
	return 0;
}

static int bytes_of(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

// As the header's inline function does: drivers fill a longer struct than the library's own call knows.
int vb_port(uintptr_t dev, int port, struct vb_port *out)
{
	struct ibv_context *ctx = (struct ibv_context *)dev;
	struct verbs_context *extended = verbs_get_ctx_op(ctx, query_port);
	struct ibv_port_attr a;
	int rc;

	memset(&a, 0, sizeof(a));
	if (extended)
		rc = extended->query_port(ctx, port, &a, sizeof(a));
	else
		rc = lib.p_ibv_query_port(ctx, port, (void *)&a);
	if ((rc = vb_result(rc)))
		return rc;
	out->state = a.state;
	out->active_mtu = bytes_of(a.active_mtu);
	out->max_mtu = bytes_of(a.max_mtu);
	out->gids = a.gid_tbl_len;
	out->pkeys = a.pkey_tbl_len;
	out->max_message = a.max_msg_sz;
	out->lid = a.lid;
	out->link = a.link_layer;
	out->width = a.active_width;
	out->speed = a.active_speed;
	return 0;
}

int vb_gids(uintptr_t dev, struct vb_gid *out, int max)
{
	struct ibv_gid_entry *e;
	ssize_t n, i;

	if (!lib.query_gid_table)
		return -ENOSYS;
	if (!(e = calloc(max, sizeof(*e))))
		return -ENOMEM;
	n = lib.query_gid_table((struct ibv_context *)dev, e, max, 0, sizeof(*e));
	for (i = 0; i < n && i < max; i++) {
		memcpy(out[i].gid, e[i].gid.raw, 16);
		out[i].index = e[i].gid_index;
		out[i].port = e[i].port_num;
		out[i].type = e[i].gid_type;
		out[i].ifindex = e[i].ndev_ifindex;
	}
	free(e);
	return n;
}

int vb_async_fd(uintptr_t dev)
{
	int fd = ((struct ibv_context *)dev)->async_fd, rc = vb_nonblocking(fd);

	return rc ? rc : fd;
}

int vb_async(uintptr_t dev, struct vb_async *out)
{
	struct ibv_async_event e;

	errno = 0;
	if (lib.p_ibv_get_async_event((struct ibv_context *)dev, &e))
		return vb_failed();
	out->code = e.event_type;
	out->text = lib.p_ibv_event_type_str(e.event_type);
	out->port = 0;
	out->qp = out->cq = 0;
	switch (e.event_type) {
	case IBV_EVENT_CQ_ERR:
		out->cq = (uintptr_t)e.element.cq;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->qp = (uintptr_t)e.element.qp;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_PKEY_CHANGE:
	case IBV_EVENT_SM_CHANGE:
	case IBV_EVENT_CLIENT_REREGISTER:
	case IBV_EVENT_GID_CHANGE:
		out->port = e.element.port_num;
		break;
	default:
		break;
	}
	lib.p_ibv_ack_async_event(&e);
	return 0;
}

int vb_alloc_pd(uintptr_t dev, uintptr_t *pd)
{
	errno = 0;
	*pd = (uintptr_t)lib.p_ibv_alloc_pd((struct ibv_context *)dev);
	return *pd ? 0 : vb_failed();
}

int vb_dealloc_pd(uintptr_t pd)
{
	return vb_result(lib.p_ibv_dealloc_pd((struct ibv_pd *)pd));
}

int vb_reg_mr(uintptr_t pd, uintptr_t addr, uint64_t length, uint32_t access, uintptr_t *mr, uint32_t *lkey, uint32_t *rkey)
{
	struct ibv_mr *m;

	errno = 0;
	if (!(m = lib.p_ibv_reg_mr((struct ibv_pd *)pd, (void *)addr, length, (int)access)))
		return vb_failed();
	*mr = (uintptr_t)m;
	*lkey = m->lkey;
	*rkey = m->rkey;
	return 0;
}

int vb_dereg_mr(uintptr_t mr)
{
	return vb_result(lib.p_ibv_dereg_mr((struct ibv_mr *)mr));
}

int vb_alloc_mw(uintptr_t pd, uintptr_t *mw, uint32_t *rkey)
{
	struct ibv_mw *m;

	errno = 0;
	if (!(m = ibv_alloc_mw((struct ibv_pd *)pd, IBV_MW_TYPE_2)))
		return vb_failed();
	*mw = (uintptr_t)m;
	*rkey = m->rkey;
	return 0;
}

int vb_dealloc_mw(uintptr_t mw)
{
	return vb_result(ibv_dealloc_mw((struct ibv_mw *)mw));
}
