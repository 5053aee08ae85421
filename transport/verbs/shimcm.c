//go:build verbs && cgo && linux

// Connections: librdmacm.

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>

#include "shimlib.h"

static struct vb_cm_channel *channel_of(struct rdma_cm_id *id)
{
	return id->context;
}

int vb_create_event_channel(uintptr_t *ch, int *fd)
{
	struct vb_cm_channel *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return -ENOMEM;
	errno = 0;
	if (!(c->events = lib.p_rdma_create_event_channel())) {
		rc = vb_failed();
		free(c);
		return rc;
	}
	if ((rc = vb_nonblocking(c->events->fd))) {
		lib.p_rdma_destroy_event_channel(c->events);
		free(c);
		return rc;
	}
	pthread_mutex_init(&c->lock, NULL);
	*ch = (uintptr_t)c;
	*fd = c->events->fd;
	return 0;
}

void vb_destroy_event_channel(uintptr_t ch)
{
	struct vb_cm_channel *c = (struct vb_cm_channel *)ch;

	lib.p_rdma_destroy_event_channel(c->events);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

int vb_cm_event(uintptr_t ch, struct vb_cm_event *out)
{
	struct vb_cm_channel *c = (struct vb_cm_channel *)ch;
	struct rdma_cm_event *e;
	int rc;

	pthread_mutex_lock(&c->lock);
	errno = 0;
	if ((rc = vb_result(lib.p_rdma_get_cm_event(c->events, &e)))) {
		pthread_mutex_unlock(&c->lock);
		return rc;
	}
	out->id = (uintptr_t)e->id;
	out->listener = (uintptr_t)e->listen_id;
	out->kind = e->event;
	out->status = e->status;
	out->text = lib.p_rdma_event_str(e->event);
	out->responder_resources = e->param.conn.responder_resources;
	out->initiator_depth = e->param.conn.initiator_depth;
	out->private_len = e->param.conn.private_data ? e->param.conn.private_data_len : 0;
	if (out->private_len)
		memcpy(out->private_data, e->param.conn.private_data, out->private_len);
	lib.p_rdma_ack_cm_event(e);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

int vb_create_id(uintptr_t ch, uintptr_t *id)
{
	struct vb_cm_channel *c = (struct vb_cm_channel *)ch;
	struct rdma_cm_id *i = NULL;
	int rc;

	errno = 0;
	rc = vb_result(lib.p_rdma_create_id(c->events, &i, c, RDMA_PS_TCP)); // a request's id has its listener's context
	*id = (uintptr_t)i;
	return rc;
}

int vb_destroy_id(uintptr_t id)
{
	// Not under the channel's lock: the kernel can take its time (a connection that is being torn down, siw's connect), and all set-ups
	// would wait with it. Nor is the lock needed: the call returns when each event of the id that was taken is acknowledged, and
	// vb_cm_event's acknowledgement is the last touch of it.
	errno = 0;
	return vb_result(lib.p_rdma_destroy_id((struct rdma_cm_id *)id));
}

int vb_move_id(uintptr_t id, uintptr_t ch)
{
	struct rdma_cm_id *i = (struct rdma_cm_id *)id;
	struct vb_cm_channel *from = channel_of(i), *to = (struct vb_cm_channel *)ch;
	struct vb_cm_channel *first = from < to ? from : to, *second = from < to ? to : from;
	int rc;

	if (from == to)
		return 0;
	pthread_mutex_lock(&first->lock);
	pthread_mutex_lock(&second->lock);
	errno = 0;
	if (!(rc = vb_result(lib.p_rdma_migrate_id(i, to->events))))
		i->context = to;
	pthread_mutex_unlock(&second->lock);
	pthread_mutex_unlock(&first->lock);
	return rc;
}

// to_sockaddr returns its second argument, or null where there is no address.
static struct sockaddr *to_sockaddr(const struct vb_addr *a, struct sockaddr_storage *s)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)s;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)s;

	memset(s, 0, sizeof(*s));
	switch (a->family) {
	case 4:
		v4->sin_family = AF_INET;
		v4->sin_port = htons(a->port);
		memcpy(&v4->sin_addr, a->ip, 4);
		return (struct sockaddr *)s;
	case 6:
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(a->port);
		v6->sin6_scope_id = a->scope;
		memcpy(&v6->sin6_addr, a->ip, 16);
		return (struct sockaddr *)s;
	}
	return NULL;
}

static void from_sockaddr(const struct sockaddr *s, struct vb_addr *a)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)s;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)s;

	memset(a, 0, sizeof(*a));
	switch (s->sa_family) {
	case AF_INET:
		a->family = 4;
		a->port = ntohs(v4->sin_port);
		memcpy(a->ip, &v4->sin_addr, 4);
		break;
	case AF_INET6:
		a->family = 6;
		a->port = ntohs(v6->sin6_port);
		a->scope = v6->sin6_scope_id;
		memcpy(a->ip, &v6->sin6_addr, 16);
		break;
	}
}

int vb_bind_addr(uintptr_t id, const struct vb_addr *a)
{
	struct sockaddr_storage s;

	errno = 0;
	return vb_result(lib.p_rdma_bind_addr((struct rdma_cm_id *)id, to_sockaddr(a, &s)));
}

int vb_set_tos(uintptr_t id, uint8_t tos)
{
	errno = 0;
	return vb_result(lib.p_rdma_set_option((struct rdma_cm_id *)id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)));
}

int vb_set_ack_timeout(uintptr_t id, uint8_t power)
{
	enum { ack_timeout = 3 }; // RDMA_OPTION_ID_ACK_TIMEOUT, which rdma-core's headers have since version 23; the library only passes it on

	errno = 0;
	return vb_result(lib.p_rdma_set_option((struct rdma_cm_id *)id, RDMA_OPTION_ID, ack_timeout, &power, sizeof(power)));
}

int vb_resolve_addr(uintptr_t id, const struct vb_addr *src, const struct vb_addr *dst, int timeout_ms)
{
	struct sockaddr_storage s, d;

	errno = 0;
	return vb_result(lib.p_rdma_resolve_addr((struct rdma_cm_id *)id, to_sockaddr(src, &s), to_sockaddr(dst, &d), timeout_ms));
}

int vb_resolve_route(uintptr_t id, int timeout_ms)
{
	errno = 0;
	return vb_result(lib.p_rdma_resolve_route((struct rdma_cm_id *)id, timeout_ms));
}

int vb_listen(uintptr_t id, int backlog)
{
	errno = 0;
	return vb_result(lib.p_rdma_listen((struct rdma_cm_id *)id, backlog));
}

static struct rdma_conn_param conn_param(const struct vb_param *p, const uint8_t *private_data, int len)
{
	struct rdma_conn_param c = {
		.private_data = len ? private_data : NULL,
		.private_data_len = len,
		.responder_resources = p->responder_resources,
		.initiator_depth = p->initiator_depth,
		.flow_control = p->flow_control,
		.retry_count = p->retry,
		.rnr_retry_count = p->rnr_retry,
	};

	return c;
}

int vb_connect(uintptr_t id, const struct vb_param *p, const uint8_t *private_data, int len)
{
	struct rdma_conn_param c = conn_param(p, private_data, len);
	sigset_t all, old;
	int rc;

	// siw connects TCP within this call. A signal (Go's runtime sends them to threads that it would preempt) makes the kernel give
	// that connection up and begin anew; the peer's siw, which has not accepted it yet, takes its end for the listener's own
	// (siw_cm_llp_state_change of the child with the listener's endpoint), and releases the listening socket twice in the end.
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	errno = 0;
	rc = vb_result(lib.p_rdma_connect((struct rdma_cm_id *)id, &c));
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

int vb_accept(uintptr_t id, const struct vb_param *p, const uint8_t *private_data, int len)
{
	struct rdma_conn_param c = conn_param(p, private_data, len);

	errno = 0;
	return vb_result(lib.p_rdma_accept((struct rdma_cm_id *)id, &c));
}

int vb_reject(uintptr_t id, const uint8_t *private_data, int len)
{
	errno = 0;
	return vb_result(lib.p_rdma_reject((struct rdma_cm_id *)id, private_data, len));
}

int vb_disconnect(uintptr_t id)
{
	errno = 0;
	return vb_result(lib.p_rdma_disconnect((struct rdma_cm_id *)id));
}

int vb_where(uintptr_t id, struct vb_where *out)
{
	struct rdma_cm_id *i = (struct rdma_cm_id *)id;
	struct vb_cm_channel *c = channel_of(i);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&c->lock);
	out->dev = (uintptr_t)i->verbs;
	out->port = i->port_num;
	from_sockaddr(&i->route.addr.src_addr, &out->local);
	from_sockaddr(&i->route.addr.dst_addr, &out->remote);
	if (i->verbs && i->verbs->device->transport_type == IBV_TRANSPORT_IB) {
		memcpy(out->gid, i->route.addr.addr.ibaddr.sgid.raw, 16);
		out->pkey = ntohs(i->route.addr.addr.ibaddr.pkey);
		if (i->route.num_paths > 0 && i->route.path_rec) {
			out->sl = i->route.path_rec->sl;
			out->tclass = i->route.path_rec->traffic_class;
			if (i->route.path_rec->mtu >= IBV_MTU_256 && i->route.path_rec->mtu <= IBV_MTU_4096)
				out->mtu = 128 << i->route.path_rec->mtu;
		}
		// What the queue pair really has, once it is connected.
		if (i->qp && i->qp->state >= IBV_QPS_RTR && i->qp->state <= IBV_QPS_SQD &&
		    lib.p_ibv_query_qp(i->qp, &a, IBV_QP_PATH_MTU | IBV_QP_AV | IBV_QP_PKEY_INDEX, &init) == 0) {
			__be16 pkey = 0;

			if (lib.p_ibv_query_pkey(i->verbs, i->port_num, a.pkey_index, &pkey) == 0)
				out->pkey = ntohs(pkey);
			if (a.path_mtu >= IBV_MTU_256 && a.path_mtu <= IBV_MTU_4096)
				out->mtu = 128 << a.path_mtu;
			out->sl = a.ah_attr.sl;
			if (a.ah_attr.is_global)
				out->tclass = a.ah_attr.grh.traffic_class;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return 0;
}
