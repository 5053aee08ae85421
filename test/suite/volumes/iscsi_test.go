package volumes

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// tool runs one of libiscsi's programs.
func tool(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	b, err := exec.Command(need.Tool(t, name, "libiscsi-bin"), args...).CombinedOutput()
	return string(b), err
}

// capacity is a LUN's size as libiscsi reads it.
func (d *daemon) capacity(lun int) int64 {
	d.t.Helper()
	out, err := tool(d.t, "iscsi-readcapacity16", d.url(lun))
	m := regexp.MustCompile(`Total size:(\d+)`).FindStringSubmatch(out)
	if err != nil || m == nil {
		d.t.Fatalf("capacity of LUN %d: %v\n%s", lun, err, out)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// vpd is a vital product data page as libiscsi prints it.
func (d *daemon) vpd(lun, page int) string {
	d.t.Helper()
	out, err := tool(d.t, "iscsi-inq", "-e", "1", "-c", fmt.Sprint(page), d.url(lun))
	if err != nil {
		d.t.Fatalf("page %02x of LUN %d: %v\n%s", page, lun, err, out)
	}
	return out
}

// identity is what initiators know a LUN by: the lines of the designators of its logical unit, and its serial number.
func (d *daemon) identity(lun int) string {
	d.t.Helper()
	var id []string
	for l := range strings.Lines(d.vpd(lun, 0x83)) {
		if _, v, ok := strings.Cut(l, "Designator:["); ok && !strings.Contains(v, target) {
			id = append(id, strings.TrimSpace(v))
		}
	}
	if len(id) == 0 {
		d.t.Fatalf("no designator in\n%s", d.vpd(lun, 0x83))
	}
	return strings.Join(append(id, d.vpd(lun, 0x80)), "\n")
}
