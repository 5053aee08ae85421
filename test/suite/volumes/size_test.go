package volumes

import (
	"os"
	"strings"
	"testing"
)

// A volume's size is its file's, whatever its configuration says or leaves out: a smaller one is refused by a resize and by a
// reload, a larger one grows the file and the LUN, and the content stays.
func TestGrowingNeverShrinks(t *testing.T) {
	const mib = 1 << 20
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	img := d.file("v.img", 8*mib, 'x')
	d.start()
	is := func(want int64) {
		t.Helper()
		if got := d.size(img); got != want {
			t.Fatalf("the file has %d bytes, want %d", got, want)
		}
		if got := d.capacity(0); got != want {
			t.Errorf("the LUN has %d bytes, want %d", got, want)
		}
		if got := d.volumes()["v"].Size; got != want {
			t.Errorf("the volume is listed with %d bytes, want %d", got, want)
		}
		b, err := os.ReadFile(img)
		if err != nil || strings.Trim(string(b[:8*mib]), "x") != "" {
			t.Fatalf("the content has changed: %v", err)
		}
	}
	is(8 * mib)
	d.refused("has 8MiB", "volume", "resize", "v", "4MiB")
	d.refused("has 8MiB", "volume", "resize", "v", "8MiB")
	is(8 * mib)
	for _, smaller := range []string{"4MiB", "512"} {
		d.configure("  - {name: v, path: v.img, size: "+smaller+"}", "v")
		d.refused("would cut it", "reload")
		is(8 * mib)
	}
	d.configure("  - {name: v, path: v.img, size: 8MiB}", "v")
	d.must("reload")
	is(8 * mib)
	if out := d.must("volume", "resize", "v", "9MiB"); !strings.Contains(out, "from 8MiB to 9MiB") {
		t.Errorf("the answer is %q", out)
	}
	is(9 * mib)
	d.configure("  - {name: v, path: v.img, size: 10MiB}", "v")
	d.must("reload")
	is(10 * mib)
	// A start with a smaller one serves what there is.
	d.stop()
	d.configure("  - {name: v, path: v.img, size: 1MiB}", "v")
	d.start()
	is(10 * mib)
}

// A size that was given by command leaves with its volume: a later volume of that name has the size that it is configured with.
func TestASizeGivenByCommandLeavesWithItsVolume(t *testing.T) {
	first, other := "  - {name: data, path: one.img, size: 1MiB}\n", "  - {name: data, path: two.img, size: 1MiB}\n"
	for name, leaves := range map[string]func(d *daemon){
		"by a reload":                   func(d *daemon) { d.configure("  []"); d.must("reload") },
		"by a command":                  func(d *daemon) { d.configure("  []"); d.must("volume", "create", "x", "1MiB") },
		"while down":                    func(d *daemon) { d.kill(); d.configure("  []"); d.start() },
		"at once with another's coming": func(d *daemon) { d.kill(); d.configure(other); d.start() },
	} {
		t.Run(name, func(t *testing.T) {
			d := prepare(t, first)
			d.sparse("one.img", 1<<20)
			d.sparse("two.img", 1<<20)
			d.start()
			d.must("volume", "resize", "data", "2MiB")
			leaves(d)
			d.configure(other)
			d.must("reload")
			if n := d.volumes()["data"].Size; n != 1<<20 || d.size(d.path("two.img")) != 1<<20 {
				t.Errorf("the other volume has %d bytes", n)
			}
			d.configure("  []")
			d.must("reload")
			d.configure(first)
			d.must("reload")
			if n := d.volumes()["data"].Size; n != 2<<20 {
				t.Errorf("the volume that was resized has %d bytes", n)
			}
		})
	}
}
