package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/disk"
)

// A clone promises what its origin does; of a thick volume, whose blocks are to be its own, there is none.
func TestAClonePromisesWhatItsOriginDoes(t *testing.T) {
	dir := disk.Mount(t, "xfs", 400<<20)
	v := func(name string) string { return filepath.Join(dir, name) }
	d := prepare(t, "  - {name: thin, path: "+v("thin")+", block: 4096, atomic: true, limits: {iops: 5000, bandwidth: 200MiB}}\n"+
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
	d.refused("is thick", "volume", "create", "second", "--clone", "thick", "--path", v("second"))
}
