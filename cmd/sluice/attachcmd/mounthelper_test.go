package attachcmd

import (
	"bytes"
	"errors"
	"io/fs"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

const testURL = "iser://h/iqn.2026-11.org.example:x/0"

// The command lines are those that util-linux 2.38 makes of fstab lines and of mount -t sluice.
func TestMountHelperReadsWhatMountPasses(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want func(a *mountArgs)
	}{
		{"mount.sluice", []string{testURL, "/mnt", "-o", "rw"}, func(*mountArgs) {}},
		{"mount.sluice", []string{testURL, "/mnt", "-o", "rw,noatime,fstype=ext4,data=ordered"}, func(a *mountArgs) {
			a.m.fstype, a.m.opts = "ext4", []string{"noatime", "data=ordered"}
		}},
		{"mount.sluice", []string{testURL, "/mnt", "-sfnv", "-o", "ro,as=nbd,reconnect=5m,name=db,credentials=/c,crc=off,initiator=iqn.2026-11.org.example:me"}, func(a *mountArgs) {
			a.fake, a.verbose, a.m.flags = true, true, []string{"-s", "-n"}
			a.m.o.readOnly, a.m.o.face, a.m.o.name = true, faceDevice, "db"
			a.m.o.conn.Reconnect, a.m.o.conn.Credentials, a.m.o.conn.CRC, a.m.o.conn.Initiator = 5*time.Minute, "/c", "off", "iqn.2026-11.org.example:me"
		}},
		{"mount.sluice", []string{"-v", "-t", "sluice.xfs", "-N", "/proc/7/ns/mnt", testURL, "/mnt"}, func(a *mountArgs) {
			a.verbose, a.m.fstype, a.m.flags = true, "xfs", []string{"-N", "/proc/7/ns/mnt"}
		}},
		{"mount.sluice.btrfs", []string{testURL, "/mnt", "-oremount,ro"}, func(a *mountArgs) {
			a.m.fstype, a.remount, a.m.o.readOnly = "btrfs", true, true
		}},
		{"mount.sluice", []string{testURL, "/mnt", "-o", "_netdev,nofail,noauto,x-systemd.automount,user,defaults,comment=x"}, func(*mountArgs) {}},
		{"mount.sluice", []string{strings.Replace(testURL, "://", ":/", 1), "/mnt"}, func(*mountArgs) {}},
	} {
		got, err := parseMountArgs(tc.name, tc.args)
		if err != nil {
			t.Errorf("%s %q: %v", tc.name, tc.args, err)
			continue
		}
		want := &mountArgs{m: mounting{url: testURL, where: "/mnt"}}
		want.m.o.conn.CRC, want.m.o.face = "on", faceAuto
		tc.want(want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s %q\ngot  %+v\nwant %+v", tc.name, tc.args, got, want)
		}
	}
	for _, bad := range [][]string{{testURL}, {testURL, "/a", "/b"}, {testURL, "/mnt", "-o"}, {testURL, "/mnt", "-x"}, {testURL, "/mnt", "-o", "as=socket"}, {testURL, "/mnt", "-o", "reconnect=soon"}, {testURL, "/mnt", "-o", "fstype="}} {
		_, err := parseMountArgs("mount.sluice", bad)
		var e ui.ExitError
		if !errors.As(err, &e) || e.Code != ui.CodeUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestASchemeGetsItsSlashBack(t *testing.T) {
	for in, want := range map[string]string{
		testURL:              testURL,
		"nfs+rdma:/h:2049/x": "nfs+rdma://h:2049/x",
		"iser:/a/iqn.2026-11.org.example:x/0,iscsi:/b/iqn.2026-11.org.example:x/0": "iser://a/iqn.2026-11.org.example:x/0,iscsi://b/iqn.2026-11.org.example:x/0",
		"host:/x": "host:/x",
	} {
		if got := restoreURL(in); got != want {
			t.Errorf("%s becomes %s", in, got)
		}
	}
}

func TestUmountHelperReadsWhatUmountPasses(t *testing.T) {
	where, lazy, flags, err := parseUmountArgs([]string{"/mnt", "-lfnrv", "-N", "/ns", "-t", "sluice.ext4"})
	if err != nil || where != "/mnt" || !lazy || !reflect.DeepEqual(flags, []string{"-f", "-n", "-r", "-N", "/ns"}) {
		t.Errorf("%q %v %q %v", where, lazy, flags, err)
	}
	for _, bad := range [][]string{{}, {"/a", "/b"}, {"/a", "-t"}, {"/a", "-q"}} {
		if _, _, _, err := parseUmountArgs(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestTheProgramKnowsItsOtherNames(t *testing.T) {
	var out bytes.Buffer
	if _, ok := MultiCall(t.Context(), []string{"/usr/bin/sluice", "map"}, &out); ok {
		t.Error("sluice is taken for a helper of mount(8)")
	}
	for _, name := range []string{"/sbin/mount.sluice", "umount.sluice"} {
		out.Reset()
		if code, ok := MultiCall(t.Context(), []string{name}, &out); !ok || code != mountUsage || !strings.Contains(out.String(), "usage: ") {
			t.Errorf("%s: code %d, %v, says %q", name, code, ok, out.String())
		}
	}
}

func FuzzMountArgs(f *testing.F) {
	f.Add("mount.sluice", testURL+"\x00/mnt\x00-o\x00rw,fstype=ext4")
	f.Add("mount.sluice.xfs", "-N\x00-\x00-sfnvt\x00a.b")
	f.Fuzz(func(t *testing.T, name, args string) {
		a, err := parseMountArgs(name, strings.Split(args, "\x00"))
		if err == nil && (a.m.o.face == faceSocket || a.m.o.conn.CRC == "") {
			t.Fatalf("%+v", a)
		}
		_, _, _, _ = parseUmountArgs(strings.Split(args, "\x00"))
	})
}

func TestMountinfoIsRead(t *testing.T) {
	got := parseMountinfo(`22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 43:0 / /mnt/with\040space rw master:2 propagate_from:1 - ext4 /dev/nbd0 rw
40 22 0:40 / /run/a.d rw - fuse.sluice sluice rw,user_id=0
broken`)
	want := []mountPoint{{"22", "/", "ext4", "/dev/vda", "254:0"}, {"31", "/mnt/with space", "ext4", "/dev/nbd0", "43:0"}, {"40", "/run/a.d", "fuse.sluice", "sluice", "0:40"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// What others mount meanwhile is no reason to miss a line; what changes without end is not waited for.
func TestMountinfoIsReadUntilItSettles(t *testing.T) {
	reads := []string{"a c", "a b c", "a b c", "a"}
	n := 0
	got, err := settled(func() ([]byte, error) { n++; return []byte(reads[n-1]), nil })
	if string(got) != "a b c" || err != nil || n != 3 {
		t.Errorf("%q, %v after %d readings", got, err, n)
	}
	n = 0
	got, err = settled(func() ([]byte, error) { n++; return []byte(strconv.Itoa(n)), nil })
	if string(got) != strconv.Itoa(n) || err != nil || n > 50 {
		t.Errorf("%q, %v after %d readings", got, err, n)
	}
	if _, err := settled(func() ([]byte, error) { return nil, fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}

// Signatures lie at a device's beginning or end; what is in the middle says nothing about them.
func TestAVolumeIsEmptyWhenItsEdgesAreBlank(t *testing.T) {
	const size = 5 << 20
	for _, tc := range []struct{ at, want int64 }{{-1, -1}, {0, 0}, {edge - 1, edge - 1}, {edge, -1}, {size - edge - 1, -1}, {size - edge, size - edge}, {size - 1, size - 1}} {
		b := make([]byte, size)
		if tc.at >= 0 {
			b[tc.at] = 1
		}
		if got, err := firstNonZero(bytes.NewReader(b), size); err != nil || got != tc.want {
			t.Errorf("a byte at %d: %d, %v", tc.at, got, err)
		}
	}
	if got, err := firstNonZero(bytes.NewReader(make([]byte, 1000)), 1000); err != nil || got != -1 {
		t.Errorf("a small volume: %d, %v", got, err)
	}
}

// The kernel must not repeat a request that the initiator still has, however long it waits for the target.
func TestTheKernelWaitsLongerThanTheInitiator(t *testing.T) {
	for _, limit := range []time.Duration{0, -1, time.Millisecond, time.Hour, 30 * 24 * time.Hour, 1 << 62} {
		k := kernelTimeout(limit)
		if limit >= 0 && limit < 20*24*time.Hour && k <= max(limit, time.Minute) || limit < 0 && k < 24*time.Hour || k.Milliseconds() >= 1<<31 || k < 5*time.Minute {
			t.Errorf("limit %v: the kernel waits %v", limit, k)
		}
	}
}
