//go:build ceph && cgo && linux

// Requests to an image. Go fills operations and reads what has ended in memory that both see; one call starts a batch, and none is
// needed for a completion.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shim.h"

struct cr_ring_private {
	cr_handle image;
	pthread_mutex_t lock; // between threads of librbd's that complete
	int fd;
};

int cr_ring_open(cr_handle image, struct cr_ring **out, int *fd)
{
	struct cr_ring *r = calloc(1, sizeof(*r));
	int i;

	if (!r || !(r->own = calloc(1, sizeof(*r->own)))) {
		free(r);
		return -ENOMEM;
	}
	if ((r->own->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
		int rc = -errno;

		free(r->own);
		free(r);
		return rc;
	}
	r->own->image = image;
	pthread_mutex_init(&r->own->lock, NULL);
	for (i = 0; i < CR_DEPTH; i++) {
		r->ops[i].slot = i;
		r->ops[i].ring = (uintptr_t)r;
	}
	*out = r;
	*fd = r->own->fd;
	return 0;
}

// Nothing is under way any more. The eventfd is Go's.
void cr_ring_close(struct cr_ring *r)
{
	pthread_mutex_lock(&r->own->lock); // the last completion has let go of it
	pthread_mutex_unlock(&r->own->lock);
	pthread_mutex_destroy(&r->own->lock);
	free(r->own);
	free(r);
}

void cr_ring_signal(struct cr_ring *r)
{
	uint64_t one = 1;
	ssize_t n = write(r->own->fd, &one, sizeof(one));

	(void)n;
}

// The lock is held until the ring is not touched any more: Go may close it as soon as it has seen the last completion.
static void ended(struct cr_ring *r, struct cr_ring_op *op, int64_t result)
{
	struct cr_ring_private *own = r->own;
	uint32_t tail;

	op->result = result;
	pthread_mutex_lock(&own->lock);
	tail = r->tail;
	r->done[tail % CR_DEPTH] = op->slot;
	__atomic_store_n(&r->tail, tail + 1, __ATOMIC_SEQ_CST);
	if (__atomic_exchange_n(&r->armed, 0, __ATOMIC_SEQ_CST))
		cr_ring_signal(r);
	pthread_mutex_unlock(&own->lock);
}

static void completed(cr_handle c, void *arg)
{
	struct cr_ring_op *op = arg;
	int64_t result = cr.p_rbd_aio_get_return_value(c);

	cr.p_rbd_aio_release(c);
	ended((struct cr_ring *)(uintptr_t)op->ring, op, result);
}

static int start(cr_handle image, struct cr_ring_op *op, cr_handle c)
{
	switch (op->op) {
	case CR_READ:
		return cr.p_rbd_aio_readv(image, op->iov, op->iovs, op->offset, c);
	case CR_WRITE:
		return cr.p_rbd_aio_writev(image, op->iov, op->iovs, op->offset, c);
	case CR_FLUSH:
		return cr.p_rbd_aio_flush(image, c);
	case CR_DISCARD:
		return cr.p_rbd_aio_discard(image, op->offset, op->length, c);
	case CR_ZERO:
		return cr.p_rbd_aio_write_zeroes(image, op->offset, op->length, c, 0, 0);
	case CR_ZERO_THICK:
		return cr.p_rbd_aio_write_zeroes(image, op->offset, op->length, c, CR_WRITE_ZEROES_THICK, 0);
	}
	return -EOPNOTSUPP;
}

void cr_ring_submit(struct cr_ring *r, const uint16_t *slots, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		struct cr_ring_op *op = &r->ops[slots[i]];
		cr_handle c = NULL;
		int rc = cr.p_rbd_aio_create_completion(op, completed, &c);

		if (rc < 0) {
			ended(r, op, rc);
			continue;
		}
		if ((rc = start(r->own->image, op, c)) < 0) {
			cr.p_rbd_aio_release(c); // it is not called then
			ended(r, op, rc);
		}
	}
}
