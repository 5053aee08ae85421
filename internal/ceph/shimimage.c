//go:build ceph && cgo && linux

// Images, but for their requests.

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shim.h"

int cr_image_open(cr_handle io, const char *name, const char *snap, int read_only, cr_handle *out)
{
	sigset_t all, was;
	int rc;

	sigfillset(&all); // of the threads that are made here, as in cr_connect
	pthread_sigmask(SIG_SETMASK, &all, &was);
	rc = read_only ? cr.p_rbd_open_read_only(io, name, out, snap) : cr.p_rbd_open(io, name, out, snap);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return rc;
}

int cr_image_close(cr_handle image) { return cr.p_rbd_close(image); }
int cr_image_size(cr_handle image, uint64_t *size) { return cr.p_rbd_get_size(image, size); }
int cr_image_resize(cr_handle image, uint64_t size) { return cr.p_rbd_resize(image, size); }
int cr_image_lock(cr_handle image) { return cr.p_rbd_lock_acquire(image, CR_LOCK_MODE_EXCLUSIVE); }
int cr_image_unlock(cr_handle image) { return cr.p_rbd_lock_release(image); }
int cr_image_invalidate(cr_handle image) { return cr.p_rbd_invalidate_cache(image); }
int cr_snap_create(cr_handle image, const char *name) { return cr.p_rbd_snap_create(image, name); }
int cr_snap_remove(cr_handle image, const char *name) { return cr.p_rbd_snap_remove(image, name); }
int cr_image_remove(cr_handle io, const char *name) { return cr.p_rbd_remove(io, name); }

int cr_image_info(cr_handle image, struct cr_info *out)
{
	struct cr_image_info info;
	int rc;

	memset(&info, 0, sizeof(info));
	memset(out, 0, sizeof(*out));
	if ((rc = cr.p_rbd_stat(image, &info, sizeof(info))) < 0 || (rc = cr.p_rbd_get_features(image, &out->features)) < 0 ||
	    (rc = cr.p_rbd_get_stripe_unit(image, &out->stripe_unit)) < 0 || (rc = cr.p_rbd_get_stripe_count(image, &out->stripe_count)) < 0)
		return rc;
	out->size = info.size;
	out->object_size = info.obj_size;
	rc = cr.p_rbd_get_id(image, out->id, sizeof(out->id));
	return rc == -EINVAL ? 0 : rc; // an image of the first format has none
}

int cr_image_owns(cr_handle image)
{
	int is = 0, rc = cr.p_rbd_is_exclusive_lock_owner(image, &is);

	return rc < 0 ? rc : is;
}

int cr_image_owner(cr_handle image, char *buf, size_t len)
{
	char *owners[8] = {0};
	size_t n = 8;
	int mode = 0, rc = cr.p_rbd_lock_get_owners(image, &mode, owners, &n);

	if (rc < 0)
		return rc;
	if (n == 0)
		return -ENOENT;
	snprintf(buf, len, "%s", owners[0]);
	cr.p_rbd_lock_get_owners_cleanup(owners, n);
	return 0;
}

int cr_image_break_lock(cr_handle image, const char *owner) { return cr.p_rbd_lock_break(image, CR_LOCK_MODE_EXCLUSIVE, owner); }

int cr_image_option(cr_handle image, const char *name, char *buf, size_t len)
{
	struct cr_config_option *list = NULL, *more;
	int rc = -ERANGE, n = 64, i;

	for (int tries = 0; rc == -ERANGE && tries < 4; tries++) {
		if (!(more = realloc(list, n * sizeof(*list)))) {
			free(list);
			return -ENOMEM;
		}
		list = more;
		memset(list, 0, n * sizeof(*list));
		rc = cr.p_rbd_config_image_list(image, list, &n);
	}
	if (rc >= 0) {
		rc = -ENOENT;
		for (i = 0; i < n; i++)
			if (strcmp(list[i].name, name) == 0) {
				snprintf(buf, len, "%s", list[i].value);
				rc = 0;
			}
		cr.p_rbd_config_image_list_cleanup(list, n);
	}
	free(list);
	return rc;
}

struct cr_update {
	uint64_t handle;
	int fd;
};

static void updated(void *arg)
{
	struct cr_update *u = arg;
	uint64_t one = 1;
	ssize_t n = write(u->fd, &one, sizeof(one));

	(void)n;
}

int cr_image_watch(cr_handle image, struct cr_update **out, int *fd)
{
	struct cr_update *u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return -ENOMEM;
	if ((u->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) {
		rc = -errno;
		free(u);
		return rc;
	}
	if ((rc = cr.p_rbd_update_watch(image, &u->handle, updated, u)) < 0) {
		close(u->fd);
		free(u);
		return rc;
	}
	*out = u;
	*fd = u->fd;
	return 0;
}

int cr_image_unwatch(cr_handle image, struct cr_update *u)
{
	int rc = cr.p_rbd_update_unwatch(image, u->handle); // waits for a call of updated

	free(u);
	return rc;
}

struct diff {
	struct cr_extent *out;
	int n, max;
};

static int differs(uint64_t offset, size_t length, int exists, void *arg)
{
	struct diff *d = arg;

	if (!exists || length == 0)
		return 0;
	if (d->n > 0 && d->out[d->n - 1].offset + d->out[d->n - 1].length == offset) {
		d->out[d->n - 1].length += length;
		return 0;
	}
	if (d->n == d->max)
		return -EINTR;
	d->out[d->n++] = (struct cr_extent){ offset, length };
	return 0;
}

int cr_image_diff(cr_handle image, uint64_t offset, uint64_t length, struct cr_extent *out, int max)
{
	struct diff d = { .out = out, .max = max };
	int rc = cr.p_rbd_diff_iterate2(image, NULL, offset, length, 1, 0, differs, &d);

	return rc < 0 && d.n < max ? rc : d.n;
}

int cr_snaps(cr_handle image, struct cr_snap *out, int max)
{
	struct cr_snap_info *list = NULL, *more;
	int rc = -ERANGE, n = 16, i;

	for (int tries = 0; rc == -ERANGE && tries < 4; tries++) {
		if (!(more = realloc(list, n * sizeof(*list)))) {
			free(list);
			return -ENOMEM;
		}
		list = more;
		memset(list, 0, n * sizeof(*list));
		rc = cr.p_rbd_snap_list(image, list, &n);
	}
	for (i = 0; i < rc && i < max; i++) {
		out[i].id = list[i].id;
		out[i].size = list[i].size;
		snprintf(out[i].name, sizeof(out[i].name), "%s", list[i].name);
	}
	if (rc > 0)
		cr.p_rbd_snap_list_end(list);
	free(list);
	return rc;
}

int cr_image_create(cr_handle io, const char *name, uint64_t size, int order, const char *data_pool)
{
	cr_handle opts;
	int rc = 0;

	cr.p_rbd_image_options_create(&opts);
	if (order)
		rc = cr.p_rbd_image_options_set_uint64(opts, CR_IMAGE_OPTION_ORDER, order);
	if (rc >= 0 && *data_pool)
		rc = cr.p_rbd_image_options_set_string(opts, CR_IMAGE_OPTION_DATA_POOL, data_pool);
	if (rc >= 0)
		rc = cr.p_rbd_create4(io, name, size, opts);
	cr.p_rbd_image_options_destroy(opts);
	return rc;
}

// The second format of clones needs no protection of the snapshot, which can then be removed while it has clones.
int cr_image_clone(cr_handle parent_io, const char *parent, const char *snap, cr_handle io, const char *name)
{
	cr_handle opts;
	int rc;

	cr.p_rbd_image_options_create(&opts);
	rc = cr.p_rbd_image_options_set_uint64(opts, CR_IMAGE_OPTION_CLONE_FORMAT, 2);
	if (rc >= 0)
		rc = cr.p_rbd_clone3(parent_io, parent, snap, io, name, opts);
	cr.p_rbd_image_options_destroy(opts);
	return rc;
}
