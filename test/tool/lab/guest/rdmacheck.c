/*
 * rdmacheck moves messages of 0 bytes to 1 MiB over librdmacm, by Send, RDMA Write and RDMA Read, in both directions,
 * and compares every byte. Its peer is the program test/tool/lab/exchange, whose package comment has the protocol.
 *
 *   rdmacheck client ADDRESS PORT | rdmacheck server ADDRESS PORT
 */
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAXLEN = 1 << 20, GUARD = 64, NRECV = 4 };
enum { GRANT = 1, GRANTED, GOOD, TURN, BYE };

struct ctl {
	uint32_t op, len, seed, rkey;
	uint64_t addr;
};

static struct rdma_cm_id *id;
static uint8_t *recvs[NRECV], *window, *out, *sink;
static struct ibv_mr *recv_mr[NRECV], *window_mr, *out_mr, *sink_mr;
static unsigned next_recv;

static const uint32_t lengths[] = {0,    1,    2,	3,     4,     63,    64,     65,     1023,   1024,	   1448,    1449,   1450,
				   1451, 1452, 4095,	4096,  4097,  8191,  8192,   16384,  32761,  32762,	   32763,   65535,  65536,
				   65537, 131072, 262143, 524288, MAXLEN - 1, MAXLEN};

static void die(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "rdmacheck: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	exit(1);
}

static uint8_t byte_at(uint32_t seed, uint32_t i) { return (uint8_t)(i * 7 + (i >> 8) * 13 + seed * 31); }

static void fill(uint8_t *b, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		b[i] = byte_at(seed, i);
}

static void check(const char *what, const uint8_t *b, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		if (b[i] != byte_at(seed, i))
			die("%s of %u bytes: byte %u is %02x, not %02x", what, n, i, b[i], byte_at(seed, i));
}

static void guard(uint8_t *b, uint32_t n) { memset(b + n, 0xa5, GUARD); }

static void check_guard(const char *what, const uint8_t *b, uint32_t n)
{
	for (uint32_t i = 0; i < GUARD; i++)
		if (b[n + i] != 0xa5)
			die("%s of %u bytes went %u bytes too far", what, n, i + 1);
}

static uint8_t *memory(struct ibv_mr **mr, int access)
{
	uint8_t *b = calloc(1, MAXLEN + GUARD);
	if (!b)
		die("no memory");
	*mr = ibv_reg_mr(id->pd, b, MAXLEN + GUARD, access);
	if (!*mr)
		die("register memory: %m");
	return b;
}

static void post_recv(unsigned i)
{
	if (rdma_post_recv(id, (void *)(uintptr_t)i, recvs[i], MAXLEN + GUARD, recv_mr[i]))
		die("post a receive: %m");
}

static void set_up(void)
{
	for (unsigned i = 0; i < NRECV; i++) {
		recvs[i] = memory(&recv_mr[i], IBV_ACCESS_LOCAL_WRITE);
		post_recv(i);
	}
	window = memory(&window_mr, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	out = memory(&out_mr, IBV_ACCESS_LOCAL_WRITE);
	/* iWARP reaches the sink of an RDMA Read as remote memory */
	sink = memory(&sink_mr, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static void sent(const char *what)
{
	struct ibv_wc wc;
	if (rdma_get_send_comp(id, &wc) != 1)
		die("%s: %m", what);
	if (wc.status != IBV_WC_SUCCESS)
		die("%s: %s", what, ibv_wc_status_str(wc.status));
}

/* received returns the next message; its buffer is posted again by the next call but NRECV-2. */
static uint8_t *received(uint32_t *len)
{
	struct ibv_wc wc;
	if (rdma_get_recv_comp(id, &wc) != 1)
		die("receive: %m");
	if (wc.status != IBV_WC_SUCCESS)
		die("receive: %s", ibv_wc_status_str(wc.status));
	if (wc.wr_id != next_recv)
		die("receive %u completed in place of %u", (unsigned)wc.wr_id, next_recv);
	next_recv = (next_recv + 1) % NRECV;
	*len = wc.byte_len;
	return recvs[wc.wr_id];
}

static void say(struct ctl c)
{
	c.op = htobe32(c.op), c.len = htobe32(c.len), c.seed = htobe32(c.seed), c.rkey = htobe32(c.rkey), c.addr = htobe64(c.addr);
	memcpy(out, &c, sizeof c);
	if (rdma_post_send(id, NULL, out, sizeof c, out_mr, IBV_SEND_SIGNALED))
		die("post a send: %m");
	sent("send");
}

static struct ctl hear(void)
{
	uint32_t n;
	struct ctl c;
	unsigned slot = next_recv;
	uint8_t *b = received(&n);
	if (n != sizeof c)
		die("a control message of %u bytes", n);
	memcpy(&c, b, sizeof c);
	post_recv(slot);
	c.op = be32toh(c.op), c.len = be32toh(c.len), c.seed = be32toh(c.seed), c.rkey = be32toh(c.rkey), c.addr = be64toh(c.addr);
	return c;
}

static void drive(void)
{
	for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		uint32_t n = lengths[i], seed = i * 3 + 1;
		say((struct ctl){.op = GRANT, .len = n, .seed = seed});
		struct ctl g = hear();
		if (g.op != GRANTED || g.len != n)
			die("the peer answered %u to a request for memory", g.op);
		guard(sink, n);
		if (rdma_post_read(id, NULL, sink, n, sink_mr, IBV_SEND_SIGNALED, g.addr, g.rkey))
			die("post a read: %m");
		sent("read");
		check("read", sink, n, seed);
		check_guard("read", sink, n);
		fill(out, n, seed + 1);
		if (rdma_post_write(id, NULL, out, n, out_mr, IBV_SEND_SIGNALED, g.addr, g.rkey))
			die("post a write: %m");
		sent("write");
		fill(out, n, seed + 2);
		if (rdma_post_send(id, NULL, out, n, out_mr, IBV_SEND_SIGNALED))
			die("post a send: %m");
		sent("send");
		if (hear().op != GOOD)
			die("the peer did not take %u bytes", n);
	}
	printf("rdmacheck: %zu lengths driven\n", sizeof lengths / sizeof *lengths);
}

static void serve(void)
{
	unsigned count = 0;
	for (;;) {
		struct ctl c = hear();
		if (c.op != GRANT)
			break;
		if (c.len > MAXLEN)
			die("the peer asks for %u bytes", c.len);
		fill(window, c.len, c.seed);
		guard(window, c.len);
		say((struct ctl){.op = GRANTED, .len = c.len, .rkey = window_mr->rkey, .addr = (uintptr_t)window});
		uint32_t n;
		unsigned slot = next_recv;
		uint8_t *b = received(&n);
		if (n != c.len)
			die("a message of %u bytes in place of %u", n, c.len);
		check("send", b, n, c.seed + 2);
		check("write", window, n, c.seed + 1);
		check_guard("write", window, n);
		post_recv(slot);
		say((struct ctl){.op = GOOD});
		count++;
	}
	printf("rdmacheck: %u lengths served\n", count);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		die("usage: rdmacheck client|server ADDRESS PORT");
	setvbuf(stdout, NULL, _IOLBF, 0);
	int server = !strcmp(argv[1], "server");
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = server ? RAI_PASSIVE : 0}, *ai;
	if (rdma_getaddrinfo(argv[2], argv[3], &hints, &ai))
		die("address %s: %m", argv[2]);
	struct ibv_qp_init_attr attr = {
	    .cap = {.max_send_wr = 8, .max_recv_wr = NRECV + 1, .max_send_sge = 1, .max_recv_sge = 1},
	    .qp_type = IBV_QPT_RC,
	    .sq_sig_all = 1,
	};
	struct rdma_conn_param p = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 7};
	if (server) {
		struct rdma_cm_id *l;
		if (rdma_create_ep(&l, ai, NULL, &attr))
			die("create a listener: %m");
		if (rdma_listen(l, 1))
			die("listen: %m");
		printf("rdmacheck: listening\n");
		if (rdma_get_request(l, &id))
			die("get a request: %m");
		set_up();
		if (rdma_accept(id, &p))
			die("accept: %m");
		serve();
		drive();
		say((struct ctl){.op = BYE});
	} else {
		if (rdma_create_ep(&id, ai, NULL, &attr))
			die("create an endpoint: %m");
		set_up();
		if (rdma_connect(id, &p))
			die("connect: %m");
		drive();
		say((struct ctl){.op = TURN});
		serve();
	}
	rdma_disconnect(id);
	printf("rdmacheck: every byte as expected\n");
	return 0;
}
