/*
 * A small program on libnfs's API: what an application does with a share, each step checked. It says what failed and ends
 * with 1.
 *
 *   api URL-of-export
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>

#include <nfsc/libnfs.h>

static struct nfs_context *nfs;

static void fail(const char *what, long got)
{
	fprintf(stderr, "api: %s: %ld, %s\n", what, got, nfs_get_error(nfs));
	exit(1);
}

#define OK(call) do { long r_ = (call); if (r_ < 0) fail(#call, r_); } while (0)
#define IS(call, want) do { long r_ = (call), w_ = (want); if (r_ != w_) { fprintf(stderr, "want %ld; ", w_); fail(#call, r_); } } while (0)

int main(int argc, char **argv)
{
	enum { size = 3 * 1024 * 1024 + 77 };
	struct nfs_url *url;
	struct nfsfh *f;
	struct nfsdir *d;
	struct nfsdirent *e;
	struct nfs_stat_64 st;
	struct statvfs vfs;
	struct timeval times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1234567890}};
	char *out = malloc(size), *back = malloc(size), link[256] = "";
	int names = 0;

	if (argc != 2 || !out || !back || !(nfs = nfs_init_context()))
		return 2;
	if (!(url = nfs_parse_url_dir(nfs, argv[1])))
		fail("url", 0);
	OK(nfs_mount(nfs, url->server, url->path));
	OK(nfs_mkdir2(nfs, "/d", 0750));
	IS(nfs_mkdir(nfs, "/d"), -EEXIST);
	OK(nfs_create(nfs, "/d/f", O_RDWR | O_CREAT | O_EXCL, 0640, &f));
	for (int i = 0; i < size; i++)
		out[i] = (char)(i * 2654435761u >> 11);
	for (long at = 0, n; at < size; at += n) {
		n = nfs_pwrite(nfs, f, at, size - at > 1 << 20 ? 1 << 20 : size - at, out + at);
		if (n <= 0)
			fail("pwrite", n);
	}
	OK(nfs_fsync(nfs, f));
	for (long at = 0, n; at < size; at += n) {
		n = nfs_pread(nfs, f, at, size - at > 1 << 20 ? 1 << 20 : size - at, back + at);
		if (n <= 0)
			fail("pread", n);
	}
	if (memcmp(out, back, size))
		fail("compare", 0);
	IS(nfs_pread(nfs, f, size, 100, back), 0);
	OK(nfs_ftruncate(nfs, f, 1000));
	OK(nfs_fstat64(nfs, f, &st));
	IS(st.nfs_size, 1000);
	IS(st.nfs_mode & 07777, 0640);
	/* A hole: nothing was written between. */
	IS(nfs_pwrite(nfs, f, 5000000000ll, 3, "end"), 3);
	IS(nfs_pread(nfs, f, 4000000000ll, 16, back), 16);
	IS(memcmp(back, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16), 0);
	OK(nfs_close(nfs, f));
	OK(nfs_stat64(nfs, "/d/f", &st));
	IS(st.nfs_size, 5000000003ll);
	OK(nfs_link(nfs, "/d/f", "/d/hard"));
	OK(nfs_stat64(nfs, "/d/hard", &st));
	IS(st.nfs_nlink, 2);
	OK(nfs_symlink(nfs, "f", "/d/soft"));
	OK(nfs_readlink(nfs, "/d/soft", link, sizeof link));
	IS(strcmp(link, "f"), 0);
	OK(nfs_lstat64(nfs, "/d/soft", &st));
	IS(S_ISLNK(st.nfs_mode), 1);
	OK(nfs_chmod(nfs, "/d/f", 0600));
	OK(nfs_utimes(nfs, "/d/f", times));
	OK(nfs_stat64(nfs, "/d/f", &st));
	IS(st.nfs_mode & 07777, 0600);
	IS(st.nfs_mtime, 1234567890);
	OK(nfs_mknod(nfs, "/d/fifo", S_IFIFO | 0600, 0));
	OK(nfs_rename(nfs, "/d/f", "/d/g"));
	IS(nfs_stat64(nfs, "/d/f", &st), -ENOENT);
	OK(nfs_opendir(nfs, "/d", &d));
	while ((e = nfs_readdir(nfs, d)))
		names += e->name[0] != '.';
	nfs_closedir(nfs, d);
	IS(names, 4);
	OK(nfs_statvfs(nfs, "/d", &vfs));
	IS(vfs.f_blocks > 0, 1);
	IS(nfs_rmdir(nfs, "/d"), -ENOTEMPTY);
	OK(nfs_unlink(nfs, "/d/hard"));
	OK(nfs_unlink(nfs, "/d/soft"));
	OK(nfs_unlink(nfs, "/d/fifo"));
	OK(nfs_truncate(nfs, "/d/g", 5));
	OK(nfs_umount(nfs));
	nfs_destroy_url(url);
	nfs_destroy_context(nfs);
	free(out);
	free(back);
	printf("all right\n");
	return 0;
}
