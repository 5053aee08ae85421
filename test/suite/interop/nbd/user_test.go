package nbd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// uid is nobody: an ordinary user that has an account everywhere, which fusermount3 wants.
const uid = 65534

// user runs a shell script as an ordinary user who may open /dev/fuse, as on most machines: where this one allows root only,
// the script's mount namespace has another node. It returns what the script said.
func (l *lab) user(script string, env ...string) (string, error) {
	t := l.t
	t.Helper()
	need.Root(t)
	need.FUSE(t)
	need.Mount(t)
	need.Tool(t, "setpriv", "util-linux")
	need.Tool(t, "unshare", "util-linux")
	need.Tool(t, "fusermount3", "fuse3")
	home := filepath.Join(l.dir, "home")
	for _, d := range []string{built, l.dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, uid, uid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	outer := fmt.Sprintf(`node=$(mktemp -d) && mknod -m 666 $node/fuse c 10 229 && mount --bind $node/fuse /dev/fuse && rm -rf $node
exec setpriv --reuid %d --regid %d --clear-groups sh -euc "$SCRIPT"`, uid, uid)
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-ec", outer)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "SCRIPT="+script, "HOME="+home, "SLUICE_RUNTIME_DIR="+filepath.Join(home, "run"), "SLUICE_STATE_DIR="+filepath.Join(home, "state"), "PATH="+l.bin+":"+os.Getenv("PATH"), "URL="+l.url())
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// nothing checks that a user's session left no record, log or socket.
func (l *lab) nothing() {
	l.t.Helper()
	entries, err := os.ReadDir(filepath.Join(l.dir, "home/run"))
	if err != nil || len(entries) != 1 || entries[0].Name() != ".lock" {
		l.t.Errorf("left in the user's records: %v %v", entries, err)
	}
}

// An ordinary user has a volume as a file by FUSE, and as a socket for the programs that speak NBD.
func TestAnOrdinaryUserAttaches(t *testing.T) {
	for tool, pkg := range map[string]string{"qemu-img": "qemu-utils", "nbdcopy": "libnbd-bin", "fio": "fio"} {
		need.Tool(t, tool, pkg)
	}
	l := start(t)
	out, err := l.user(`
head -c 8388608 /dev/urandom >want
f=$(sluice attach $URL --name f 2>why)
grep 'only root can make block devices; /dev/fuse is usable' why
dd if=want of=$f bs=1M conv=notrunc,fsync status=none
sluice detach f
f=$(sluice attach $URL --name f)
cmp -n 8388608 want $f
sluice detach f
sluice attach $URL --face socket --socket $PWD/s --name s
u="nbd+unix:///?socket=$PWD/s"
qemu-img info "$u" | grep '256 MiB'
nbdcopy "$u" got
cmp -n 8388608 want got
fio --name=v --ioengine=nbd --uri="$u" --rw=randwrite --bs=4k --size=4m --iodepth=16 --verify=crc32c --do_verify=1 --output=fio.out
qemu-img convert -n -f raw -O raw want "$u"
nbdcopy "$u" got
cmp -n 8388608 want got
sluice detach s
sluice attach $URL --face device && exit 1
sluice mount $URL $PWD && exit 1
sluice attachments -o json`)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(out), "[]") {
		t.Fatalf("%v:\n%s", err, out)
	}
	l.nothing()
}

// An ordinary user has an export as a directory, with files that are theirs on the server.
func TestAnOrdinaryUserMountsAnExport(t *testing.T) {
	need.Root(t)
	l := start(t)
	dir, urls := l.exports()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("not for all"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, url := range urls {
		out, err := l.user(`
mkdir -p mnt
sluice mount $EXPORT mnt --name m
mkdir mnt/$N && cd mnt/$N
head -c 3145729 /dev/urandom >a && cp a b && ln -s b link && ln b hard && mv a c
cmp c link
[ $(stat -c %u-%h hard) = 65534-2 ]
cat ../secret && exit 1
flock c true
touch -d 2001-02-03 c && chmod 640 c
cd ../..
sluice umount mnt
rmdir mnt
sluice attachments -o json`, "EXPORT="+url, fmt.Sprint("N=n", i))
		if err != nil || !strings.HasSuffix(strings.TrimSpace(out), "[]") {
			t.Fatalf("%s: %v:\n%s", url, err, out)
		}
		l.nothing()
	}
}
