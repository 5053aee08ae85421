package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
)

// A daemon with shared memory in its fabric has a socket a portal, in the directory and with the rights that it is told, as long as it serves;
// a volume is reached by it, and the metrics know.
func TestADaemonServesThroughSharedMemory(t *testing.T) {
	sockets := filepath.Join(t.TempDir(), "sockets")
	d, _ := running(t, fileConfig+fmt.Sprintf("fabric: [{provider: iwarp}, {provider: shm, sockets: %q, mode: \"0640\"}]\n", sockets))
	_, port, err := net.SplitHostPort(d.Portals()[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sockets, port+".sock")
	limit := time.Now().Add(30 * time.Second)
	for { // a listener has no event
		if fi, err := os.Lstat(socket); err == nil && fi.Mode().Perm() == 0o640 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("there is no socket for the portal")
		}
		time.Sleep(time.Millisecond)
	}
	v, err := block.Open(t.Context(), "iser:///"+d.Targets()[0].Name+"/0?provider=shm&socket="+socket, block.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want, got := bytes.Repeat([]byte("shared"), 1024)[:4096], make([]byte, 4096)
	if _, err := v.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("%v, equal %t", err, bytes.Equal(got, want))
	}
	w := httptest.NewRecorder()
	d.metricsHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	m := w.Body.String()
	for _, name := range []string{`sluice_fabric_connections{provider="shm"} 1`, "sluice_fabric_records_total ", "sluice_fabric_shared_bytes_total ", "sluice_fabric_bells_total ", "sluice_fabric_refused_memory_total 0",
		`sluice_fabric_sessions{device="",provider="shm"} 1`} {
		if !strings.Contains(m, name) {
			t.Errorf("the metrics lack %s", name)
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// Without a word of it a service has shared memory for its own user and root, in the directory that the service manager gave it, and a
// daemon that was started by hand has none.
func TestAServiceHasSharedMemoryForRoot(t *testing.T) {
	t.Setenv("RUNTIME_DIRECTORY", "")
	d, file := running(t, fileConfig)
	if n := len(d.devices()); n != 1 {
		t.Errorf("by hand: %d devices", n)
	}
	dir := t.TempDir()
	t.Setenv("RUNTIME_DIRECTORY", dir)
	other := filepath.Join(t.TempDir(), "sluiced.yaml")
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(other, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, other)
	defer stop()
	_, port, err := net.SplitHostPort(d.Portals()[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(30 * time.Second)
	socket := filepath.Join(dir, port+".sock")
	for { // a listener has no event
		if fi, err := os.Lstat(socket); err == nil && fi.Mode().Perm() == 0o600 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("a service has no socket")
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}
