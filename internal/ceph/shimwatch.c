//go:build ceph && cgo && linux

// Watches: what librados's threads tell is kept here until Go asks.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shim.h"

struct note {
	struct note *next;
	struct cr_note n;
};

struct cr_watch {
	cr_handle io;
	char *object;
	uint64_t cookie;
	size_t max_payload;
	uint32_t max_queued, queued;
	int fd, error;
	pthread_mutex_t lock;
	struct note *head, **tail;
};

static void wake(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one)); // fails only where it is signalled already

	(void)n;
}

static void noted(void *arg, uint64_t id, uint64_t handle, uint64_t notifier, void *data, size_t len)
{
	struct cr_watch *w = arg;
	struct note *n;

	(void)handle;
	if (len > w->max_payload || !(n = calloc(1, sizeof(*n))))
		return;
	if (!(n->n.data = malloc(len ? len : 1))) {
		free(n);
		return;
	}
	memcpy(n->n.data, data, len);
	n->n.len = len;
	n->n.id = id;
	n->n.notifier = notifier;
	pthread_mutex_lock(&w->lock);
	if (w->queued >= w->max_queued) {
		pthread_mutex_unlock(&w->lock);
		free(n->n.data);
		free(n);
		return;
	}
	w->queued++;
	*w->tail = n;
	w->tail = &n->next;
	pthread_mutex_unlock(&w->lock);
	wake(w->fd);
}

static void broken(void *arg, uint64_t cookie, int err)
{
	struct cr_watch *w = arg;

	(void)cookie;
	pthread_mutex_lock(&w->lock);
	if (!w->error)
		w->error = err ? err : -ENOTCONN;
	pthread_mutex_unlock(&w->lock);
	wake(w->fd);
}

static void destroy(struct cr_watch *w)
{
	struct note *n;

	while ((n = w->head)) {
		w->head = n->next;
		free(n->n.data);
		free(n);
	}
	pthread_mutex_destroy(&w->lock);
	free(w->object);
	free(w);
}

int cr_watch(cr_handle io, const char *object, uint32_t timeout_s, size_t max_payload, uint32_t max_queued, struct cr_watch **out, int *fd)
{
	struct cr_watch *w = calloc(1, sizeof(*w));
	int rc;

	if (!w || !(w->object = strdup(object))) {
		free(w);
		return -ENOMEM;
	}
	w->io = io;
	w->max_payload = max_payload;
	w->max_queued = max_queued;
	w->tail = &w->head;
	pthread_mutex_init(&w->lock, NULL);
	if ((w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
		rc = -errno;
		destroy(w);
		return rc;
	}
	if ((rc = cr.p_rados_watch3(io, object, &w->cookie, noted, broken, timeout_s, w)) < 0) {
		close(w->fd);
		destroy(w);
		return rc;
	}
	*out = w;
	*fd = w->fd;
	return 0;
}

int cr_watch_next(struct cr_watch *w, struct cr_note *out)
{
	struct note *n;

	memset(out, 0, sizeof(*out));
	pthread_mutex_lock(&w->lock);
	if ((n = w->head)) {
		if (!(w->head = n->next))
			w->tail = &w->head;
		w->queued--;
	} else {
		out->error = w->error;
	}
	pthread_mutex_unlock(&w->lock);
	if (!n)
		return out->error ? CR_BROKEN : 0;
	*out = n->n;
	free(n);
	return CR_NOTE;
}

int cr_watch_ack(struct cr_watch *w, uint64_t id, const char *data, int len)
{
	return cr.p_rados_notify_ack(w->io, w->object, id, w->cookie, data, len);
}

int cr_watch_check(struct cr_watch *w) { return cr.p_rados_watch_check(w->io, w->cookie); }

int cr_watch_close(cr_handle c, struct cr_watch *w)
{
	int rc = cr.p_rados_unwatch2(w->io, w->cookie);

	cr.p_rados_watch_flush(c); // no call into noted or broken comes behind this
	destroy(w);
	return rc;
}

int cr_notify(cr_handle io, const char *object, const char *data, int len, uint64_t timeout_ms, struct cr_reply *out)
{
	char *reply = NULL;
	size_t n = 0;
	int rc = cr.p_rados_notify2(io, object, data, len, timeout_ms, &reply, &n), drc = 0;

	memset(out, 0, sizeof(*out));
	if (reply) {
		drc = cr.p_rados_decode_notify_response(reply, n, &out->acks, &out->n_acks, &out->missed, &out->n_missed);
		cr.p_rados_buffer_free(reply);
	}
	return rc < 0 ? rc : drc;
}

void cr_reply_free(struct cr_reply *r)
{
	if (r->acks || r->missed)
		cr.p_rados_free_notify_response(r->acks, r->n_acks, r->missed);
}
