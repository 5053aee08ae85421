//go:build ceph && cgo && linux

// The libraries, instances, objects and locks. shimwatch.c has watches, shimimage.c images, shimring.c their requests.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

struct cr_calls cr;

static void *opened(const char *name, struct cr_libs *out)
{
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		const char *why = dlerror();

		snprintf(out->error, sizeof(out->error), "%s", why ? why : "unknown error");
	}
	return handle;
}

#define CR_FIND(result, name, arguments) \
	if (!(cr.p_##name = (__typeof__(cr.p_##name))dlsym(handle, #name))) { \
		snprintf(out->error, sizeof(out->error), "it has no %s", #name); \
		return -1; \
	}

int cr_open_rados(struct cr_libs *out)
{
	int major = 0, minor = 0, extra = 0;
	void *handle = opened("librados.so.2", out);

	if (!handle)
		return -1;
	CR_RADOS_CALLS(CR_FIND)
	cr.p_rados_version(&major, &minor, &extra);
	snprintf(out->version, sizeof(out->version), "%d.%d.%d", major, minor, extra);
	return 0;
}

int cr_open_rbd(struct cr_libs *out)
{
	void *handle = opened("librbd.so.1", out);

	if (!handle)
		return -1;
	CR_RBD_CALLS(CR_FIND)
	return 0;
}

int cr_create(const char *user, const char *conf, cr_handle *out)
{
	cr_handle c;
	int rc = cr.p_rados_create2(&c, "ceph", user, 0);

	if (rc < 0)
		return rc;
	// The library writes its own messages to standard error where no file of the operator's says otherwise.
	if ((rc = cr.p_rados_conf_set(c, "log_to_stderr", "false")) < 0 || (rc = cr.p_rados_conf_set(c, "err_to_stderr", "false")) < 0 ||
	    (rc = cr.p_rados_conf_read_file(c, conf)) < 0 || (rc = cr.p_rados_conf_parse_env(c, NULL)) < 0) {
		cr.p_rados_shutdown(c);
		return rc;
	}
	*out = c;
	return 0;
}

int cr_conf_set(cr_handle c, const char *option, const char *value) { return cr.p_rados_conf_set(c, option, value); }

// The threads that are made here take no signal: those are Go's, whose handlers want a stack of its own.
int cr_connect(cr_handle c)
{
	sigset_t all, was;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	rc = cr.p_rados_connect(c);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return rc;
}

void cr_shutdown(cr_handle c) { cr.p_rados_shutdown(c); }
uint64_t cr_instance_id(cr_handle c) { return cr.p_rados_get_instance_id(c); }
int cr_fsid(cr_handle c, char *buf, size_t len) { return cr.p_rados_cluster_fsid(c, buf, len); }
int cr_wait_osdmap(cr_handle c) { return cr.p_rados_wait_for_latest_osdmap(c); }
void cr_free(char *buf) { cr.p_rados_buffer_free(buf); }

int cr_addrs(cr_handle c, char *buf, size_t len)
{
	char *addrs = NULL;
	int rc = cr.p_rados_getaddrs(c, &addrs);

	if (rc < 0)
		return rc;
	rc = snprintf(buf, len, "%s", addrs) < (int)len ? 0 : -ERANGE;
	cr.p_rados_buffer_free(addrs);
	return rc;
}

int cr_mon_command(cr_handle c, const char *cmd, char **out, size_t *out_len, char **status, size_t *status_len)
{
	return cr.p_rados_mon_command(c, &cmd, 1, "", 0, out, out_len, status, status_len);
}

int cr_pool(cr_handle c, const char *pool, const char *ns, cr_handle *out)
{
	int rc = cr.p_rados_ioctx_create(c, pool, out);

	if (rc < 0)
		return rc;
	cr.p_rados_ioctx_set_namespace(*out, ns);
	// A full pool answers ENOSPC or EDQUOT; without this the library waits until there is room.
	cr.p_rados_set_pool_full_try(*out);
	return 0;
}

void cr_pool_close(cr_handle io) { cr.p_rados_ioctx_destroy(io); }

// Versions are the operation's own: rados_get_last_version is of whatever the context did last, on any thread.
int64_t cr_read(cr_handle io, const char *object, char *buf, size_t len, uint64_t *version)
{
	cr_handle op, c;
	size_t n = 0;
	int rval = 0, rc = cr.p_rados_aio_create_completion(NULL, NULL, NULL, &c);

	if (rc < 0)
		return rc;
	op = cr.p_rados_create_read_op();
	cr.p_rados_read_op_read(op, 0, len, buf, &n, &rval);
	rc = cr.p_rados_aio_read_op_operate(op, io, c, object, 0);
	if (rc >= 0) {
		cr.p_rados_aio_wait_for_complete(c);
		rc = cr.p_rados_aio_get_return_value(c);
		*version = cr.p_rados_aio_get_version(c);
	}
	cr.p_rados_release_read_op(op);
	cr.p_rados_aio_release(c);
	if (rc < 0)
		return rc;
	return rval < 0 ? rval : (int64_t)n;
}

int cr_stat(cr_handle io, const char *object, uint64_t *size, int64_t *mtime)
{
	time_t t = 0;
	int rc = cr.p_rados_stat(io, object, size, &t);

	*mtime = t;
	return rc;
}

int cr_getxattr(cr_handle io, const char *object, const char *name, char *buf, size_t len)
{
	return cr.p_rados_getxattr(io, object, name, buf, len);
}

int cr_omap_get(cr_handle io, const char *object, const char *after, const char *prefix, uint64_t max, cr_handle *iter, int *more)
{
	cr_handle op, c;
	unsigned char m = 0;
	int rval = 0, rc = cr.p_rados_aio_create_completion(NULL, NULL, NULL, &c);

	if (rc < 0)
		return rc;
	*iter = NULL;
	op = cr.p_rados_create_read_op();
	cr.p_rados_read_op_omap_get_vals2(op, after, prefix, max, iter, &m, &rval);
	rc = cr.p_rados_aio_read_op_operate(op, io, c, object, 0);
	if (rc >= 0) {
		cr.p_rados_aio_wait_for_complete(c);
		rc = cr.p_rados_aio_get_return_value(c);
	}
	cr.p_rados_release_read_op(op);
	cr.p_rados_aio_release(c);
	*more = m;
	if (rc >= 0)
		rc = rval;
	if (rc < 0 && *iter) {
		cr.p_rados_omap_get_end(*iter);
		*iter = NULL;
	}
	return rc;
}

int cr_omap_next(cr_handle iter, char **key, size_t *key_len, char **val, size_t *val_len)
{
	int rc;

	*key = *val = NULL;
	rc = cr.p_rados_omap_get_next2(iter, key, val, key_len, val_len);
	return rc < 0 ? rc : *key != NULL;
}

void cr_omap_end(cr_handle iter) { cr.p_rados_omap_get_end(iter); }
int cr_list_open(cr_handle io, cr_handle *list) { return cr.p_rados_nobjects_list_open(io, list); }
int cr_list_next(cr_handle list, const char **name) { return cr.p_rados_nobjects_list_next(list, name, NULL, NULL); }
void cr_list_close(cr_handle list) { cr.p_rados_nobjects_list_close(list); }

// The library copies what a step is given.
cr_handle cr_op_new(void) { return cr.p_rados_create_write_op(); }
void cr_op_free(cr_handle op) { cr.p_rados_release_write_op(op); }
void cr_op_create_exclusive(cr_handle op) { cr.p_rados_write_op_create(op, CR_CREATE_EXCLUSIVE, NULL); }
void cr_op_assert_exists(cr_handle op) { cr.p_rados_write_op_assert_exists(op); }
void cr_op_assert_version(cr_handle op, uint64_t version) { cr.p_rados_write_op_assert_version(op, version); }
void cr_op_remove(cr_handle op) { cr.p_rados_write_op_remove(op); }

void cr_op_cmpxattr(cr_handle op, const char *name, const char *value, size_t len)
{
	cr.p_rados_write_op_cmpxattr(op, name, CR_CMPXATTR_EQ, value, len);
}

void cr_op_setxattr(cr_handle op, const char *name, const char *value, size_t len)
{
	cr.p_rados_write_op_setxattr(op, name, value, len);
}

void cr_op_write_full(cr_handle op, const char *data, size_t len) { cr.p_rados_write_op_write_full(op, data, len); }

void cr_op_omap_set(cr_handle op, const char *key, size_t key_len, const char *value, size_t len)
{
	cr.p_rados_write_op_omap_set2(op, &key, &value, &key_len, &len, 1);
}

void cr_op_omap_rm(cr_handle op, const char *key, size_t key_len) { cr.p_rados_write_op_omap_rm_keys2(op, &key, &key_len, 1); }

int cr_op_run(cr_handle op, cr_handle io, const char *object, uint64_t *version)
{
	cr_handle c;
	int rc = cr.p_rados_aio_create_completion(NULL, NULL, NULL, &c);

	if (rc < 0)
		return rc;
	rc = cr.p_rados_aio_write_op_operate(op, io, c, object, NULL, 0);
	if (rc >= 0) {
		cr.p_rados_aio_wait_for_complete(c);
		rc = cr.p_rados_aio_get_return_value(c);
		*version = cr.p_rados_aio_get_version(c);
	}
	cr.p_rados_aio_release(c);
	return rc;
}

int cr_lock_exclusive(cr_handle io, const char *object, const char *name, const char *cookie, const char *desc, int64_t usec, int renew)
{
	struct timeval tv = { .tv_sec = usec / 1000000, .tv_usec = usec % 1000000 };

	return cr.p_rados_lock_exclusive(io, object, name, cookie, desc, usec > 0 ? &tv : NULL, renew ? CR_LOCK_MAY_RENEW : 0);
}

int cr_unlock(cr_handle io, const char *object, const char *name, const char *cookie)
{
	return cr.p_rados_unlock(io, object, name, cookie);
}

int cr_break_lock(cr_handle io, const char *object, const char *name, const char *client, const char *cookie)
{
	return cr.p_rados_break_lock(io, object, name, client, cookie);
}

int64_t cr_lockers(cr_handle io, const char *object, const char *name, char *clients, char *cookies, char *addrs, size_t len)
{
	char tag[1024];
	size_t tag_len = sizeof(tag), clients_len = len, cookies_len = len, addrs_len = len;
	int exclusive = 0;

	return cr.p_rados_list_lockers(io, object, name, &exclusive, tag, &tag_len, clients, &clients_len, cookies, &cookies_len, addrs, &addrs_len);
}
