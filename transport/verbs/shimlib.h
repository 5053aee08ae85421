// The calls of rdma-core that the shim finds when it opens the libraries. Only the shim's C files see the real headers.

#ifndef SLUICE_VERBS_SHIMLIB_H
#define SLUICE_VERBS_SHIMLIB_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "shim.h"

// Symbols are versioned, and dlsym would take a library's oldest of a name that has several (IBVERBS_1.0's, for another ABI).
#define VB_VERBS_CALLS(X) \
	X(ibv_query_device) X(ibv_query_port) X(ibv_query_pkey) X(ibv_get_async_event) X(ibv_ack_async_event) X(ibv_event_type_str) \
	X(ibv_alloc_pd) X(ibv_dealloc_pd) X(ibv_reg_mr) X(ibv_dereg_mr) \
	X(ibv_create_cq) X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) \
	X(ibv_query_qp) X(ibv_modify_qp) X(ibv_destroy_qp)
// These two have always had the first version.
#define VB_VERBS_CALLS_1_0(X) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel)
#define VB_CM_CALLS(X) \
	X(rdma_get_devices) X(rdma_free_devices) X(rdma_create_event_channel) X(rdma_destroy_event_channel) \
	X(rdma_get_cm_event) X(rdma_ack_cm_event) X(rdma_event_str) X(rdma_create_id) X(rdma_destroy_id) X(rdma_migrate_id) \
	X(rdma_bind_addr) X(rdma_set_option) X(rdma_resolve_addr) X(rdma_resolve_route) X(rdma_listen) \
	X(rdma_create_qp) X(rdma_connect) X(rdma_accept) X(rdma_reject) X(rdma_disconnect)

// A call's pointer is named lib.p_CALL: some calls are also macros of the header.
#define VB_POINTER(name) __typeof__(name) *p_##name;
extern struct vb_calls {
	VB_VERBS_CALLS(VB_POINTER)
	VB_VERBS_CALLS_1_0(VB_POINTER)
	VB_CM_CALLS(VB_POINTER)
	// Since IBVERBS_1.11; null in older libraries.
	ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);
} lib;

// An event channel of connections. The library follows an id's queue pair and addresses while it takes an event of it, so an
// id's owner holds the lock where it changes or reads those, but for rdma_destroy_id, which waits for events by itself. Each id's
// context is its channel.
struct vb_cm_channel {
	struct rdma_event_channel *events;
	pthread_mutex_t lock;
};

// rdma-core's calls return 0, an errno, its negative, or -1 with errno set.
static inline int vb_result(int rc)
{
	if (rc == 0)
		return 0;
	if (rc == -1)
		return errno ? -errno : -EIO;
	return rc > 0 ? -rc : rc;
}

// Of a call that returned no object.
static inline int vb_failed(void)
{
	return errno ? -errno : -EIO;
}

int vb_nonblocking(int fd);

#endif
