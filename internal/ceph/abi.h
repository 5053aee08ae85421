// The part of librados.so.2 and librbd.so.1 that is called, as these libraries have it: opaque handles, and the layouts of the structs that
// cross. Facts of their interface (rados/librados.h, rbd/librbd.h), which is kept under these names of the libraries.

#ifndef SLUICE_CEPH_ABI_H
#define SLUICE_CEPH_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

typedef void *cr_handle; // rados_t, rados_ioctx_t, rados_*_op_t, rados_completion_t, rbd_image_t, rbd_completion_t

struct notify_ack_t {
	uint64_t notifier_id, cookie;
	char *payload;
	uint64_t payload_len;
};
struct notify_timeout_t {
	uint64_t notifier_id, cookie;
};

typedef void (*cr_aio_cb)(cr_handle completion, void *arg);
typedef void (*cr_watch_cb)(void *arg, uint64_t notify_id, uint64_t handle, uint64_t notifier_id, void *data, size_t len);
typedef void (*cr_watch_error_cb)(void *arg, uint64_t cookie, int err);

enum {
	CR_CREATE_EXCLUSIVE = 1, // LIBRADOS_CREATE_EXCLUSIVE
	CR_CMPXATTR_EQ = 1,      // LIBRADOS_CMPXATTR_OP_EQ
	CR_LOCK_MAY_RENEW = 1,   // LIBRADOS_LOCK_FLAG_MAY_RENEW
};

// X(result, name, arguments)
#define CR_RADOS_CALLS(X) \
	X(void, rados_version, (int *, int *, int *)) \
	X(int, rados_create2, (cr_handle *, const char *, const char *, uint64_t)) \
	X(int, rados_conf_read_file, (cr_handle, const char *)) \
	X(int, rados_conf_parse_env, (cr_handle, const char *)) \
	X(int, rados_conf_set, (cr_handle, const char *, const char *)) \
	X(int, rados_connect, (cr_handle)) \
	X(void, rados_shutdown, (cr_handle)) \
	X(uint64_t, rados_get_instance_id, (cr_handle)) \
	X(int, rados_getaddrs, (cr_handle, char **)) \
	X(int, rados_cluster_fsid, (cr_handle, char *, size_t)) \
	X(int, rados_wait_for_latest_osdmap, (cr_handle)) \
	X(int, rados_mon_command, (cr_handle, const char **, size_t, const char *, size_t, char **, size_t *, char **, size_t *)) \
	X(void, rados_buffer_free, (char *)) \
	X(int, rados_ioctx_create, (cr_handle, const char *, cr_handle *)) \
	X(void, rados_ioctx_set_namespace, (cr_handle, const char *)) \
	X(void, rados_ioctx_destroy, (cr_handle)) \
	X(void, rados_set_pool_full_try, (cr_handle)) \
	X(int, rados_aio_create_completion, (void *, cr_aio_cb, cr_aio_cb, cr_handle *)) \
	X(int, rados_aio_wait_for_complete, (cr_handle)) \
	X(int, rados_aio_get_return_value, (cr_handle)) \
	X(uint64_t, rados_aio_get_version, (cr_handle)) \
	X(void, rados_aio_release, (cr_handle)) \
	X(int, rados_stat, (cr_handle, const char *, uint64_t *, time_t *)) \
	X(int, rados_getxattr, (cr_handle, const char *, const char *, char *, size_t)) \
	X(cr_handle, rados_create_read_op, (void)) \
	X(void, rados_release_read_op, (cr_handle)) \
	X(void, rados_read_op_read, (cr_handle, uint64_t, size_t, char *, size_t *, int *)) \
	X(void, rados_read_op_omap_get_vals2, (cr_handle, const char *, const char *, uint64_t, cr_handle *, unsigned char *, int *)) \
	X(int, rados_aio_read_op_operate, (cr_handle, cr_handle, cr_handle, const char *, int)) \
	X(int, rados_omap_get_next2, (cr_handle, char **, char **, size_t *, size_t *)) \
	X(void, rados_omap_get_end, (cr_handle)) \
	X(cr_handle, rados_create_write_op, (void)) \
	X(void, rados_release_write_op, (cr_handle)) \
	X(void, rados_write_op_assert_exists, (cr_handle)) \
	X(void, rados_write_op_assert_version, (cr_handle, uint64_t)) \
	X(void, rados_write_op_cmpxattr, (cr_handle, const char *, uint8_t, const char *, size_t)) \
	X(void, rados_write_op_setxattr, (cr_handle, const char *, const char *, size_t)) \
	X(void, rados_write_op_create, (cr_handle, int, const char *)) \
	X(void, rados_write_op_write_full, (cr_handle, const char *, size_t)) \
	X(void, rados_write_op_remove, (cr_handle)) \
	X(void, rados_write_op_omap_set2, (cr_handle, char const *const *, char const *const *, const size_t *, const size_t *, size_t)) \
	X(void, rados_write_op_omap_rm_keys2, (cr_handle, char const *const *, const size_t *, size_t)) \
	X(int, rados_aio_write_op_operate, (cr_handle, cr_handle, cr_handle, const char *, time_t *, int)) \
	X(int, rados_nobjects_list_open, (cr_handle, cr_handle *)) \
	X(int, rados_nobjects_list_next, (cr_handle, const char **, const char **, const char **)) \
	X(void, rados_nobjects_list_close, (cr_handle)) \
	X(int, rados_lock_exclusive, (cr_handle, const char *, const char *, const char *, const char *, struct timeval *, uint8_t)) \
	X(int, rados_unlock, (cr_handle, const char *, const char *, const char *)) \
	X(int, rados_break_lock, (cr_handle, const char *, const char *, const char *, const char *)) \
	X(ssize_t, rados_list_lockers, (cr_handle, const char *, const char *, int *, char *, size_t *, char *, size_t *, char *, size_t *, char *, size_t *)) \
	X(int, rados_watch3, (cr_handle, const char *, uint64_t *, cr_watch_cb, cr_watch_error_cb, uint32_t, void *)) \
	X(int, rados_watch_check, (cr_handle, uint64_t)) \
	X(int, rados_unwatch2, (cr_handle, uint64_t)) \
	X(int, rados_watch_flush, (cr_handle)) \
	X(int, rados_notify2, (cr_handle, const char *, const char *, int, uint64_t, char **, size_t *)) \
	X(int, rados_notify_ack, (cr_handle, const char *, uint64_t, uint64_t, const char *, int)) \
	X(int, rados_decode_notify_response, (char *, size_t, struct notify_ack_t **, size_t *, struct notify_timeout_t **, size_t *)) \
	X(void, rados_free_notify_response, (struct notify_ack_t *, size_t, struct notify_timeout_t *))

// Of librbd.

typedef void (*cr_update_cb)(void *arg);
typedef int (*cr_diff_cb)(uint64_t offset, size_t length, int exists, void *arg);

struct cr_image_info { // rbd_image_info_t
	uint64_t size, obj_size, num_objs;
	int order;
	char block_name_prefix[24];
	int64_t parent_pool;
	char parent_name[96];
};
struct cr_snap_info { // rbd_snap_info_t
	uint64_t id, size;
	const char *name;
};
struct cr_config_option { // rbd_config_option_t
	char *name, *value;
	int source;
};

enum {
	CR_WRITE_ZEROES_THICK = 1,      // RBD_WRITE_ZEROES_FLAG_THICK_PROVISION
	CR_LOCK_MODE_EXCLUSIVE = 0,     // RBD_LOCK_MODE_EXCLUSIVE
	CR_IMAGE_OPTION_ORDER = 2,      // RBD_IMAGE_OPTION_ORDER
	CR_IMAGE_OPTION_DATA_POOL = 10, // RBD_IMAGE_OPTION_DATA_POOL
	CR_IMAGE_OPTION_CLONE_FORMAT = 12,
};

#define CR_RBD_CALLS(X) \
	X(int, rbd_open, (cr_handle, const char *, cr_handle *, const char *)) \
	X(int, rbd_open_read_only, (cr_handle, const char *, cr_handle *, const char *)) \
	X(int, rbd_close, (cr_handle)) \
	X(int, rbd_stat, (cr_handle, struct cr_image_info *, size_t)) \
	X(int, rbd_get_size, (cr_handle, uint64_t *)) \
	X(int, rbd_get_features, (cr_handle, uint64_t *)) \
	X(int, rbd_get_stripe_unit, (cr_handle, uint64_t *)) \
	X(int, rbd_get_stripe_count, (cr_handle, uint64_t *)) \
	X(int, rbd_get_id, (cr_handle, char *, size_t)) \
	X(int, rbd_update_watch, (cr_handle, uint64_t *, cr_update_cb, void *)) \
	X(int, rbd_update_unwatch, (cr_handle, uint64_t)) \
	X(int, rbd_resize, (cr_handle, uint64_t)) \
	X(int, rbd_lock_acquire, (cr_handle, int)) \
	X(int, rbd_lock_release, (cr_handle)) \
	X(int, rbd_is_exclusive_lock_owner, (cr_handle, int *)) \
	X(int, rbd_lock_get_owners, (cr_handle, int *, char **, size_t *)) \
	X(void, rbd_lock_get_owners_cleanup, (char **, size_t)) \
	X(int, rbd_lock_break, (cr_handle, int, const char *)) \
	X(int, rbd_config_image_list, (cr_handle, struct cr_config_option *, int *)) \
	X(void, rbd_config_image_list_cleanup, (struct cr_config_option *, int)) \
	X(int, rbd_diff_iterate2, (cr_handle, const char *, uint64_t, uint64_t, uint8_t, uint8_t, cr_diff_cb, void *)) \
	X(int, rbd_snap_create, (cr_handle, const char *)) \
	X(int, rbd_snap_remove, (cr_handle, const char *)) \
	X(int, rbd_snap_list, (cr_handle, struct cr_snap_info *, int *)) \
	X(void, rbd_snap_list_end, (struct cr_snap_info *)) \
	X(void, rbd_image_options_create, (cr_handle *)) \
	X(void, rbd_image_options_destroy, (cr_handle)) \
	X(int, rbd_image_options_set_string, (cr_handle, int, const char *)) \
	X(int, rbd_image_options_set_uint64, (cr_handle, int, uint64_t)) \
	X(int, rbd_create4, (cr_handle, const char *, uint64_t, cr_handle)) \
	X(int, rbd_clone3, (cr_handle, const char *, const char *, cr_handle, const char *, cr_handle)) \
	X(int, rbd_remove, (cr_handle, const char *)) \
	X(int, rbd_invalidate_cache, (cr_handle)) \
	X(int, rbd_aio_create_completion, (void *, cr_aio_cb, cr_handle *)) \
	X(ssize_t, rbd_aio_get_return_value, (cr_handle)) \
	X(void, rbd_aio_release, (cr_handle)) \
	X(int, rbd_aio_readv, (cr_handle, const struct iovec *, int, uint64_t, cr_handle)) \
	X(int, rbd_aio_writev, (cr_handle, const struct iovec *, int, uint64_t, cr_handle)) \
	X(int, rbd_aio_flush, (cr_handle, cr_handle)) \
	X(int, rbd_aio_discard, (cr_handle, uint64_t, uint64_t, cr_handle)) \
	X(int, rbd_aio_write_zeroes, (cr_handle, uint64_t, size_t, cr_handle, int, int))

#define CR_POINTER(result, name, arguments) result(*p_##name) arguments;
extern struct cr_calls {
	CR_RADOS_CALLS(CR_POINTER)
	CR_RBD_CALLS(CR_POINTER)
} cr;

#endif
