package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/disk"
)

// A clone promises what its origin does; of a thick volume, whose blocks are to be its own, there is none.
func TestAClonePromisesWhatItsOriginDoes(t *testing.T) {
	dir := disk.Mount(t, "xfs", 400<<20)
	v := func(name string) string { return filepath.Join(dir, name) }
	d := prepare(t, "  - {name: thin, path: "+v("thin")+", block: 4096, atomic: true, limits: {iops: 5000, bandwidth: 200MiB}, erase: true, removable: true, vendor: ACME, product: DRIVE 3, serial: one, naa: \"3123456789abcdef\"}\n"+
		"  - {name: thick, path: "+v("thick")+", thick: true}", "thin", "thick")
	for _, name := range []string{"thin", "thick"} {
		if err := os.WriteFile(v(name), make([]byte, 8<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	d.must("volume", "create", "copy", "--clone", "thin", "--path", v("copy"))
	from, copy := d.volumes()["thin"], d.volumes()["copy"]
	if copy.How != from.How || copy.Block != 4096 || copy.Size != from.Size || !strings.Contains(copy.How, "5000") || !strings.Contains(copy.How, "redo log") {
		t.Errorf("the clone is %+v, its origin %+v", copy, from)
	}
	d.must("target", "map", target, "2", "copy")
	for _, lun := range []int{0, 2} {
		out, err := tool(t, "iscsi-inq", d.url(lun))
		for _, want := range []string{"ACME", "DRIVE 3", "Removable:1"} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("LUN %d is not %s, as its origin: %v\n%s", lun, want, err, out)
			}
		}
	}
	if d.identity(0) == d.identity(2) {
		t.Errorf("a clone has the identity of its origin: %s", d.identity(2))
	}
	if m := d.managed(); strings.Count(m, "erase: true") != 1 || strings.Contains(m, "3123456789abcdef") || strings.Contains(m, "serial: one") {
		t.Errorf("written down is\n%s", m)
	}
	d.refused("is thick", "volume", "create", "second", "--clone", "thick", "--path", v("second"))
}
