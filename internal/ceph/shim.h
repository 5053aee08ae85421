// What the Go files call. Functions that return int give 0, or what their comment says, or a negative errno; none keeps what it is passed.

#ifndef SLUICE_CEPH_SHIM_H
#define SLUICE_CEPH_SHIM_H

#include "abi.h"

struct cr_libs {
	char error[500]; // dlerror
	char version[40];
};

// cr_open_rados and cr_open_rbd open one library each, once. They return 0, or -1 with error set.
int cr_open_rados(struct cr_libs *out);
int cr_open_rbd(struct cr_libs *out);

// cr_create makes an instance that is not connected. conf may be null.
int cr_create(const char *user, const char *conf, cr_handle *out);
int cr_conf_set(cr_handle c, const char *option, const char *value);
int cr_connect(cr_handle c);
void cr_shutdown(cr_handle c);
uint64_t cr_instance_id(cr_handle c);
int cr_addrs(cr_handle c, char *buf, size_t len);
int cr_fsid(cr_handle c, char *buf, size_t len);
int cr_wait_osdmap(cr_handle c);
// What out and status get is freed by cr_free.
int cr_mon_command(cr_handle c, const char *cmd, char **out, size_t *out_len, char **status, size_t *status_len);
void cr_free(char *buf);

int cr_pool(cr_handle c, const char *pool, const char *ns, cr_handle *out);
void cr_pool_close(cr_handle io);

// cr_read returns how many bytes it read.
int64_t cr_read(cr_handle io, const char *object, char *buf, size_t len, uint64_t *version);
int cr_stat(cr_handle io, const char *object, uint64_t *size, int64_t *mtime);
int cr_getxattr(cr_handle io, const char *object, const char *name, char *buf, size_t len);
int cr_omap_get(cr_handle io, const char *object, const char *after, const char *prefix, uint64_t max, cr_handle *iter, int *more);
// cr_omap_next returns 1 while there is a pair, which lives until cr_omap_end.
int cr_omap_next(cr_handle iter, char **key, size_t *key_len, char **val, size_t *val_len);
void cr_omap_end(cr_handle iter);
int cr_list_open(cr_handle io, cr_handle *list);
int cr_list_next(cr_handle list, const char **name);
void cr_list_close(cr_handle list);

cr_handle cr_op_new(void);
void cr_op_free(cr_handle op);
void cr_op_create_exclusive(cr_handle op);
void cr_op_assert_exists(cr_handle op);
void cr_op_assert_version(cr_handle op, uint64_t version);
void cr_op_cmpxattr(cr_handle op, const char *name, const char *value, size_t len);
void cr_op_setxattr(cr_handle op, const char *name, const char *value, size_t len);
void cr_op_write_full(cr_handle op, const char *data, size_t len);
void cr_op_omap_set(cr_handle op, const char *key, size_t key_len, const char *value, size_t len);
void cr_op_omap_rm(cr_handle op, const char *key, size_t key_len);
void cr_op_remove(cr_handle op);
int cr_op_run(cr_handle op, cr_handle io, const char *object, uint64_t *version);

int cr_lock_exclusive(cr_handle io, const char *object, const char *name, const char *cookie, const char *desc, int64_t usec, int renew);
int cr_unlock(cr_handle io, const char *object, const char *name, const char *cookie);
int cr_break_lock(cr_handle io, const char *object, const char *name, const char *client, const char *cookie);
// cr_lockers returns how many there are; each buffer of len bytes has that many strings, ended by zero.
int64_t cr_lockers(cr_handle io, const char *object, const char *name, char *clients, char *cookies, char *addrs, size_t len);

struct cr_watch;
enum { CR_NOTE = 1, CR_BROKEN = 2 };
struct cr_note {
	uint64_t id, notifier;
	char *data; // freed by free
	size_t len;
	int error;
};
// fd is an eventfd that is signalled where cr_watch_next has something; it is the caller's to close behind cr_watch_close.
int cr_watch(cr_handle io, const char *object, uint32_t timeout_s, size_t max_payload, uint32_t max_queued, struct cr_watch **out, int *fd);
// cr_watch_next returns CR_NOTE, CR_BROKEN with error, or 0.
int cr_watch_next(struct cr_watch *w, struct cr_note *out);
int cr_watch_ack(struct cr_watch *w, uint64_t id, const char *data, int len);
// cr_watch_check returns how many milliseconds ago the watch was confirmed.
int cr_watch_check(struct cr_watch *w);
int cr_watch_close(cr_handle c, struct cr_watch *w);

struct cr_reply {
	struct notify_ack_t *acks;
	size_t n_acks, n_missed;
	struct notify_timeout_t *missed;
};
// What out gets is freed by cr_reply_free, whatever is returned.
int cr_notify(cr_handle io, const char *object, const char *data, int len, uint64_t timeout_ms, struct cr_reply *out);
void cr_reply_free(struct cr_reply *r);

// Images.

struct cr_info {
	uint64_t size, object_size, stripe_unit, stripe_count, features;
	char id[96];
};

int cr_image_open(cr_handle io, const char *name, const char *snap, int read_only, cr_handle *out);
int cr_image_close(cr_handle image);
int cr_image_info(cr_handle image, struct cr_info *out);
int cr_image_size(cr_handle image, uint64_t *size);
int cr_image_resize(cr_handle image, uint64_t size);
int cr_image_option(cr_handle image, const char *name, char *buf, size_t len);
int cr_image_lock(cr_handle image);
int cr_image_unlock(cr_handle image);
int cr_image_owns(cr_handle image);
// cr_image_owner gives the first holder's name, as cr_image_break_lock takes it.
int cr_image_owner(cr_handle image, char *buf, size_t len);
int cr_image_break_lock(cr_handle image, const char *owner);
int cr_image_invalidate(cr_handle image);

struct cr_update;
int cr_image_watch(cr_handle image, struct cr_update **out, int *fd);
int cr_image_unwatch(cr_handle image, struct cr_update *u);

struct cr_extent {
	uint64_t offset, length;
};
// cr_image_diff gives at most max runs of bytes that are there, in order, and returns how many.
int cr_image_diff(cr_handle image, uint64_t offset, uint64_t length, struct cr_extent *out, int max);

int cr_snap_create(cr_handle image, const char *name);
int cr_snap_remove(cr_handle image, const char *name);
struct cr_snap {
	uint64_t id, size;
	char name[256];
};
// cr_snaps returns how many there are, of which at most max are in out.
int cr_snaps(cr_handle image, struct cr_snap *out, int max);
int cr_image_create(cr_handle io, const char *name, uint64_t size, int order, const char *data_pool);
int cr_image_clone(cr_handle parent_io, const char *parent, const char *snap, cr_handle io, const char *name);
int cr_image_remove(cr_handle io, const char *name);

// The ring. Its first part is read and written by Go, with the layout of ringShared and ringOp in ring.go.

enum { CR_DEPTH = 256, CR_SPANS = 32 };
enum { CR_READ = 1, CR_WRITE, CR_FLUSH, CR_DISCARD, CR_ZERO, CR_ZERO_THICK };

struct cr_ring_op {
	uint64_t offset, length;
	int64_t result;
	uint32_t iovs;
	uint16_t slot;
	uint8_t op, unused;
	uint64_t ring;
	struct iovec iov[CR_SPANS]; // librbd reads it until the end
};

struct cr_ring {
	uint32_t tail;  // behind the last that has ended
	uint32_t armed; // the reaper sleeps and wants a signal
	uint32_t done[CR_DEPTH];
	struct cr_ring_op ops[CR_DEPTH];
	struct cr_ring_private *own;
};

int cr_ring_open(cr_handle image, struct cr_ring **out, int *fd);
void cr_ring_close(struct cr_ring *r);
// cr_ring_submit starts n operations. What fails at once ends as the others do.
void cr_ring_submit(struct cr_ring *r, const uint16_t *slots, int n);
void cr_ring_signal(struct cr_ring *r);

#endif
