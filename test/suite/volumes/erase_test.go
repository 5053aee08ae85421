package volumes

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"
)

// SBC-4 section 4.11: what SANITIZE was accepted to erase is erased, though the daemon is killed meanwhile; until then the
// data is read by no other way. What is written afterwards stays.
func TestASanitizeThatIsKilledIsCompleted(t *testing.T) {
	const size = 4 << 20
	volume := func(limits string) string { return "  - {name: v, path: v.img, erase: true" + limits + "}\n" }
	d := prepare(t, volume(", limits: {bandwidth: 64KiB}"), "v")
	path := d.file("v.img", size, 'x')
	d.start()
	v, end := d.open(0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := v.Raw(ctx, []byte{0x48, 0x83, 0, 0, 0, 0, 0, 0, 0, 0}, nil, false); err != nil { // IMMED, CRYPTOGRAPHIC ERASE
		t.Fatal(err)
	}
	if why := d.volumes()["v"].Problem; why != "SANITIZE runs" {
		t.Errorf("the list says %q", why)
	}
	d.refused("SANITIZE runs", "volume", "create", "copy", "--clone", "v", "--path", d.path("copy"))
	d.kill()
	end()
	secret := bytes.Repeat([]byte{'x'}, 4096)
	if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, secret) {
		t.Fatalf("the erasure was over before the kill: %v", err)
	}
	d.configure(volume(""), "v")
	d.start()
	for deadline := time.Now().Add(patience); d.volumes()["v"].Problem != ""; {
		if time.Now().After(deadline) {
			t.Fatal("the erasure does not go on")
		}
		time.Sleep(time.Millisecond) // a list has no event
	}
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, secret) {
		t.Errorf("what was to be erased is there: %v", err)
	}
	d.kill()
	d.file("v.img", size, 'y')
	d.start()
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, bytes.Repeat([]byte{'y'}, size)) || d.volumes()["v"].Problem != "" {
		t.Errorf("it is erased once more: %v", err)
	}
}
