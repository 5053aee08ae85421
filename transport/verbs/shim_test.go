//go:build cgo && linux && verbs

package verbs

// The shim over libraries that these tests make. They want a C compiler and no adapter: the lab takes the tests of files whose
// constraint begins with verbs into its guests, and these stay here.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// slowManager is a librdmacm whose rdma_destroy_id takes as long as the kernel may: it says on descriptor 3 that it has begun, and
// waits for a byte on descriptor 4.
const slowManager = `
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct rdma_event_channel *c = calloc(1, sizeof(*c));

	c->fd = open("/dev/null", O_RDONLY);
	return c;
}

void rdma_destroy_event_channel(struct rdma_event_channel *c)
{
	close(c->fd);
	free(c);
}

int rdma_get_cm_event(struct rdma_event_channel *c, struct rdma_cm_event **e)
{
	(void)c;
	(void)e;
	errno = EAGAIN;
	return -1;
}

int rdma_create_id(struct rdma_event_channel *c, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	*id = calloc(1, sizeof(**id));
	(*id)->channel = c;
	(*id)->context = context;
	(*id)->ps = ps;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
	char b = 0;

	if (write(3, &b, 1) != 1 || read(4, &b, 1) != 1)
		return -1;
	free(id);
	return 0;
}
`

// fakeLibraries builds libraries in a directory: cm is librdmacm's source, and every other call that the shim looks for does nothing.
func fakeLibraries(t *testing.T, cm string) string {
	t.Helper()
	header, err := os.ReadFile("shimlib.h")
	if err != nil {
		t.Fatal(err)
	}
	calls := regexp.MustCompile(`X\(((?:ibv|rdma)_\w+)\)`).FindAllStringSubmatch(string(header), -1)
	if len(calls) < 30 {
		t.Fatalf("%d calls in shimlib.h", len(calls))
	}
	dir := t.TempDir()
	for lib, prefix := range map[string]string{"libibverbs.so.1": "ibv_", "librdmacm.so.1": "rdma_"} {
		source := filepath.Join(dir, prefix+"calls.c")
		var b strings.Builder
		if prefix == "rdma_" {
			b.WriteString(cm)
		}
		var rest []string
		for _, c := range calls {
			if strings.HasPrefix(c[1], prefix) && !strings.Contains(cm, c[1]+"(") {
				rest = append(rest, fmt.Sprintf("long %s(void);\nlong %[1]s(void) { return 0; }\n", c[1]))
			}
		}
		slices.Sort(rest)
		others := filepath.Join(dir, prefix+"others.c") // apart from the header, which declares them otherwise
		for path, text := range map[string]string{source: b.String(), others: strings.Join(slices.Compact(rest), "")} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		args := append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, lib), source, others}, strings.Fields(os.Getenv("CGO_CFLAGS"))...)
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("cc: %v\n%s", err, out)
		}
	}
	return dir
}

// The kernel can keep an id for as long as it likes: what other connections hear meanwhile must not wait for it.
func TestAnIDThatIsSlowToGoHoldsUpNoEvents(t *testing.T) {
	if os.Getenv("SLUICE_FAKE_LIBRARIES") == "" {
		apart(t, fakeLibraries(t, slowManager))
		return
	}
	lib, err := openTable()
	if err != nil {
		t.Fatal(err)
	}
	ch, _, err := lib.CreateEventChannel()
	if err != nil {
		t.Fatal(err)
	}
	id, err := lib.CreateID(ch)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- lib.DestroyID(id) }()
	var b [1]byte
	if _, err := unix.Read(5, b[:]); err != nil { // it has begun
		t.Fatal(err)
	}
	if _, ok, err := lib.CMEvent(ch); ok || err != nil { // hangs where it must not
		t.Errorf("an event: %v, %v", ok, err)
	}
	if _, err := unix.Write(6, b[:]); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
	lib.DestroyEventChannel(ch)
}

// apart runs the test in a process that finds the libraries of dir.
func apart(t *testing.T, dir string) {
	t.Helper()
	var ends [4]*os.File
	for i := 0; i < 4; i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+1] = r, w
		defer r.Close()
		defer w.Close()
	}
	c := exec.CommandContext(within(t), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50s")
	c.Env = append(os.Environ(), "SLUICE_FAKE_LIBRARIES=1", "LD_LIBRARY_PATH="+dir)
	c.ExtraFiles = []*os.File{ends[1], ends[2], ends[0], ends[3]} // 3: it has begun; 4: go on; 5 and 6: the other ends
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}
