// What cgo.go and cgocm.go call. Nothing of rdma-core's headers is seen here: structs are flat, objects are their addresses.
//
// Functions that return int give 0, or what their comment says, or a negative errno. None keeps what it is passed.

#ifndef SLUICE_VERBS_SHIM_H
#define SLUICE_VERBS_SHIM_H

#include <stdint.h>

enum { VB_LIB_VERBS = 1, VB_LIB_CM = 2 };

struct vb_libs {
	int32_t missing; // VB_LIB_*: which could not be opened, or lacks a call
	char error[500]; // dlerror
	char verbs[250], cm[250]; // where they were found
};

// vb_open opens the libraries, once. It returns 0, or -1 with missing and error set.
int vb_open(struct vb_libs *out);

struct vb_device {
	char name[64], firmware[64];
	uint64_t guid, flags, max_mr_size;
	uint32_t vendor, part;
	int32_t transport, ports;
	int32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_mw, max_read_in, max_read_out;
};

struct vb_port {
	int32_t state, active_mtu, max_mtu, gids, pkeys;
	uint32_t max_message;
	uint16_t lid;
	uint8_t link, width, speed;
};

struct vb_gid {
	uint8_t gid[16];
	uint32_t index, port, type, ifindex;
};

struct vb_async {
	int32_t code, port;
	uintptr_t qp, cq;
	const char *text; // the library's
};

struct vb_caps {
	uint32_t sends, recvs, send_sge, recv_sge, inline_data;
};

// vb_devices gives the open adapters, at most max of them, and returns how many there are.
int vb_devices(uintptr_t *devs, int max);
int vb_device(uintptr_t dev, struct vb_device *out);
int vb_port(uintptr_t dev, int port, struct vb_port *out);
// vb_gids gives the entries of all ports' tables that are not empty, and returns how many. -ENOSYS: this library cannot.
int vb_gids(uintptr_t dev, struct vb_gid *out, int max);
int vb_async_fd(uintptr_t dev);
int vb_async(uintptr_t dev, struct vb_async *out);

int vb_alloc_pd(uintptr_t dev, uintptr_t *pd);
int vb_dealloc_pd(uintptr_t pd);
int vb_reg_mr(uintptr_t pd, uintptr_t addr, uint64_t length, uint32_t access, uintptr_t *mr, uint32_t *lkey, uint32_t *rkey);
int vb_dereg_mr(uintptr_t mr);
int vb_alloc_mw(uintptr_t pd, uintptr_t *mw, uint32_t *rkey);
int vb_dealloc_mw(uintptr_t mw);

int vb_create_channel(uintptr_t dev, uintptr_t *ch, int *fd);
int vb_destroy_channel(uintptr_t ch);
int vb_create_cq(uintptr_t dev, int entries, uintptr_t ch, uintptr_t *cq, int *size);
int vb_destroy_cq(uintptr_t cq);
int vb_arm(uintptr_t cq);
// vb_events returns how many events were read and acknowledged.
int vb_events(uintptr_t ch);

int vb_create_qp(uintptr_t id, uintptr_t pd, uintptr_t cq, struct vb_caps *caps, uintptr_t *qp, uint32_t *num);
int vb_error_qp(uintptr_t qp);
int vb_destroy_qp(uintptr_t id);

// The following have the layout of the Go structs of table.go; both sides check it when they are compiled.
struct vb_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

enum { VB_SEND = 1, VB_SEND_INV, VB_WRITE, VB_READ, VB_BIND, VB_LOCAL_INV };
enum { VB_FENCE = 1, VB_SIGNALED = 2, VB_SOLICITED = 4, VB_INLINE = 8 };

struct vb_send_wr {
	uint64_t id, remote_addr, mw, mr, bind_addr, bind_len;
	uint32_t rkey, inv, bind_access;
	uint16_t sges;
	uint8_t op, flags;
};

struct vb_recv_wr {
	uint64_t id;
	uint32_t sges, unused;
};

struct vb_wc {
	uint64_t id;
	uint32_t status, vendor, bytes, inv, qp_num;
	uint8_t recv, op;
	uint16_t unused;
};

enum {
	VB_OFF_SEND_RKEY = 48, VB_OFF_SEND_SGES = 60, VB_OFF_SEND_FLAGS = 63,
	VB_OFF_WC_INV = 20, VB_OFF_WC_RECV = 28,
};

// How many were posted, and why no more (an errno, 0 for none).
struct vb_posted {
	int32_t n, error;
};

struct vb_posted vb_post_send(uintptr_t qp, const struct vb_send_wr *wrs, int n, const struct vb_sge *sges, int nsges);
struct vb_posted vb_post_recv(uintptr_t qp, const struct vb_recv_wr *wrs, int n, const struct vb_sge *sges, int nsges);
// vb_poll returns how many completions it took.
int vb_poll(uintptr_t cq, struct vb_wc *wcs, int n);

// An address; family is 0 (none), 4 or 6. IPv4 is in the first four bytes.
struct vb_addr {
	uint8_t ip[16];
	uint32_t scope;
	uint16_t port;
	uint16_t family;
};

struct vb_cm_event {
	uintptr_t id, listener;
	const char *text; // the library's
	int32_t kind, status;
	uint8_t responder_resources, initiator_depth, private_len;
	uint8_t private_data[256];
};

struct vb_param {
	uint8_t responder_resources, initiator_depth, retry, rnr_retry, flow_control;
};

struct vb_where {
	uintptr_t dev;
	struct vb_addr local, remote;
	uint8_t gid[16];
	int32_t port, mtu;
	uint16_t pkey;
	uint8_t sl, tclass;
};

int vb_create_event_channel(uintptr_t *ch, int *fd);
void vb_destroy_event_channel(uintptr_t ch);
int vb_cm_event(uintptr_t ch, struct vb_cm_event *out);
int vb_create_id(uintptr_t ch, uintptr_t *id);
int vb_destroy_id(uintptr_t id);
int vb_move_id(uintptr_t id, uintptr_t ch);
int vb_bind_addr(uintptr_t id, const struct vb_addr *a);
int vb_set_tos(uintptr_t id, uint8_t tos);
int vb_set_ack_timeout(uintptr_t id, uint8_t power);
int vb_resolve_addr(uintptr_t id, const struct vb_addr *src, const struct vb_addr *dst, int timeout_ms);
int vb_resolve_route(uintptr_t id, int timeout_ms);
int vb_listen(uintptr_t id, int backlog);
int vb_connect(uintptr_t id, const struct vb_param *p, const uint8_t *private_data, int len);
int vb_accept(uintptr_t id, const struct vb_param *p, const uint8_t *private_data, int len);
int vb_reject(uintptr_t id, const uint8_t *private_data, int len);
int vb_disconnect(uintptr_t id);
int vb_where(uintptr_t id, struct vb_where *out);

#endif
