package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A file that is only away comes back as the disk that it was, with those that hosts had fenced, after a "volume create" in its
// place was refused.
func TestARefusedCreationForgetsNothingOfAFileThatIsAway(t *testing.T) {
	const volumes = "  - {name: v, path: fs/v.img}\n"
	begin := func(t *testing.T) (d *daemon, id string) {
		t.Helper()
		d = prepare(t, volumes)
		if err := os.Mkdir(d.path("fs"), 0o700); err != nil {
			t.Fatal(err)
		}
		d.sparse("fs/v.img", 1<<20)
		d.start()
		d.must("target", "map", target, "0", "v")
		v, end := d.open(0)
		reserve(t, v)
		end()
		id = d.identity(0)
		d.stop()
		return d, id
	}
	move := func(d *daemon, from, to string) {
		d.t.Helper()
		if err := os.Rename(d.path(from), d.path(to)); err != nil {
			d.t.Fatal(err)
		}
	}
	asItWas := func(d *daemon, id string) {
		d.t.Helper()
		d.must("reload")
		if got := d.identity(0); got != id {
			d.t.Errorf("it is\n%s\nbefore\n%s", got, id)
		}
		if n := d.registrations(0); n != 1 {
			d.t.Errorf("%d hosts are registered", n)
		}
	}
	t.Run("its directory is not there", func(t *testing.T) {
		d, id := begin(t)
		move(d, "fs", "unmounted")
		d.start()
		d.refused("no such file", "volume", "create", "v", "1MiB")
		move(d, "unmounted", "fs")
		asItWas(d, id)
	})
	t.Run("the configuration is wrong by now", func(t *testing.T) {
		d, id := begin(t)
		move(d, "fs/v.img", "v.img")
		d.start()
		d.configure(volumes + "  - {name: odd, size: 1}\n")
		d.refused("odd", "volume", "create", "v", "1MiB")
		move(d, "v.img", "fs/v.img")
		d.configure(volumes)
		asItWas(d, id)
	})
	t.Run("it was made, and the file system is back", func(t *testing.T) {
		d, id := begin(t)
		move(d, "fs", "unmounted")
		if err := os.Mkdir(d.path("fs"), 0o700); err != nil {
			t.Fatal(err)
		}
		d.start()
		d.must("volume", "create", "v", "1MiB")
		if d.identity(0) == id || d.registrations(0) != 0 {
			t.Error("it is the disk that it replaces")
		}
		d.stop()
		move(d, "fs", "below")
		move(d, "unmounted", "fs")
		d.start()
		d.must("target", "unmap", target, "0") // of the other one
		d.must("target", "map", target, "0", "v")
		if got := d.identity(0); got != id {
			t.Errorf("it is\n%s\nbefore\n%s", got, id)
		}
		if n := d.registrations(0); n != 1 {
			t.Errorf("%d hosts are registered", n)
		}
	})
	t.Run("it was made, and is another one", func(t *testing.T) {
		d, id := begin(t)
		move(d, "fs/v.img", "v.img")
		d.start()
		d.must("volume", "create", "v", "1MiB")
		if d.identity(0) == id || d.registrations(0) != 0 {
			t.Error("it is the disk that it replaces")
		}
		if states, err := filepath.Glob(d.state + "/scsi/lu-*"); err != nil || len(states) != 1 {
			t.Errorf("states %v, %v", states, err)
		}
	})
}

// The state of a disk is its own under whatever name it is served: a new volume of its earlier name takes nothing from it.
func TestANewVolumeTakesNothingFromOneThatWasRenamed(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}\n", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	v, end := d.open(0)
	reserve(t, v)
	end()
	d.stop()
	d.configure("  - {name: w, path: v.img}\n", "w")
	d.start()
	d.must("volume", "create", "v", "1MiB", "--path", d.path("other.img"))
	d.kill()
	d.start()
	if n := d.registrations(0); n != 1 {
		t.Errorf("%d hosts are registered", n)
	}
}

// What the operator's file has taken over from commands is the operator's: a command that would delete it is refused, and its file
// stays, whether the file has been read since or not.
func TestAVolumeThatTheFileHasTakenOverIsNotDeletedByCommand(t *testing.T) {
	for _, read := range []bool{true, false} {
		t.Run(fmt.Sprint("read ", read), func(t *testing.T) {
			d := prepare(t, "  []")
			d.start()
			d.must("volume", "create", "data", "1MiB")
			path := d.volumes()["data"].Path
			d.configure(fmt.Sprintf("  - {name: data, path: %q, size: 1MiB}\n", path))
			if read {
				d.must("reload")
			}
			d.refused("is defined in", "volume", "delete", "data", "--data", "--yes")
			if n := d.size(path); n != 1<<20 {
				t.Errorf("its file has %d bytes", n)
			}
			d.must("reload")
			d.must("volume", "resize", "data", "2MiB")
			d.must("reload")
			if n := d.volumes()["data"].Size; n != 2<<20 {
				t.Errorf("it was grown, and has %d bytes", n)
			}
		})
	}
}

// A portal that the operator's file has taken over is closed there, and no command says that it is closed.
func TestAPortalThatTheFileHasTakenOverIsNotClosedByCommand(t *testing.T) {
	d := prepare(t, "  []")
	d.start()
	d.must("portals", "add", "[::1]:0")
	d.at = `{address: "127.0.0.1:0"}, {address: "[::1]:0"}`
	d.configure("  []")
	for range 2 {
		d.refused("is defined in", "portals", "remove", "[::1]:0")
		d.must("reload")
	}
	if n := len(d.portals()); n != 2 {
		t.Errorf("there are %d portals", n)
	}
}
