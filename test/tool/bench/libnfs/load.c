/*
 * A client's load by libnfs's asynchronous calls: one file of one server, a number of calls always in flight.
 *
 *   load URL-of-export FILE
 *
 * takes lines "r|w SIZE DEPTH FILESIZE MILLISECONDS" from stdin and answers each with "CALLS MICROSECONDS". Places are
 * spread over the file as test/tool/bench/work.go spreads them.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nfsc/libnfs.h>

static struct nfs_context *nfs;
static struct nfsfh *fh;

static struct {
	int write;
	uint64_t size, blocks, sent, done, end;
	int flying;
	char *data; /* one buffer for each call in flight, as any program has */
} load;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static void fail(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, nfs ? nfs_get_error(nfs) : strerror(errno));
	exit(1);
}

struct slot {
	int n;
};

static void done(int err, struct nfs_context *, void *data, void *slot);

static void call(struct slot *s)
{
	uint64_t off = load.sent * 0x9E3779B1ull % load.blocks * load.size;
	int err;

	load.sent++;
	load.flying++;
	if (load.write)
		err = nfs_pwrite_async(nfs, fh, off, load.size, load.data + s->n * load.size, done, s);
	else
		err = nfs_pread_async(nfs, fh, off, load.size, done, s);
	if (err)
		fail("call");
}

static void done(int err, struct nfs_context *ctx, void *data, void *slot)
{
	(void)ctx;
	(void)data;
	if (err != (int)load.size) {
		fprintf(stderr, "load: a call gave %d of %" PRIu64 "\n", err, load.size);
		fail("done");
	}
	load.done++;
	load.flying--;
	if (now() < load.end)
		call(slot);
}

static void run(char op, uint64_t size, int depth, uint64_t filesize, uint64_t ms)
{
	struct slot *slots = calloc(depth, sizeof *slots);
	uint64_t start = now();

	memset(&load, 0, sizeof load);
	load.write = op == 'w';
	load.size = size;
	load.blocks = filesize / size;
	load.end = start + ms * 1000;
	load.data = malloc(size * depth);
	if (!slots || !load.data)
		fail("memory");
	memset(load.data, 7, size * depth);
	for (int i = 0; i < depth; i++) {
		slots[i].n = i;
		call(&slots[i]);
	}
	while (load.flying) {
		struct pollfd p = {.fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs)};
		if (poll(&p, 1, 60000) <= 0)
			fail("poll");
		if (nfs_service(nfs, p.revents) < 0)
			fail("service");
	}
	printf("%" PRIu64 " %" PRIu64 "\n", load.done, now() - start);
	fflush(stdout);
	free(slots);
	free(load.data);
}

int main(int argc, char **argv)
{
	char line[256], op;
	uint64_t size, filesize, ms;
	int depth;
	struct nfs_url *url;

	if (argc != 3) {
		fprintf(stderr, "usage: load URL FILE\n");
		return 2;
	}
	if (!(nfs = nfs_init_context()))
		fail("context");
	if (!(url = nfs_parse_url_dir(nfs, argv[1])))
		fail("url");
	if (nfs_mount(nfs, url->server, url->path))
		fail("mount");
	if (nfs_open(nfs, argv[2], O_RDWR, &fh))
		fail("open");
	printf("ready %" PRIu64 " %" PRIu64 "\n", nfs_get_readmax(nfs), nfs_get_writemax(nfs));
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "%c %" SCNu64 " %d %" SCNu64 " %" SCNu64, &op, &size, &depth, &filesize, &ms) != 5)
			fail("order");
		run(op, size, depth, filesize, ms);
	}
	nfs_close(nfs, fh);
	nfs_umount(nfs);
	nfs_destroy_context(nfs);
	return 0;
}
