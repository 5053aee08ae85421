package block

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// A session that has failed for the silence of its target leaves nothing in the kernel that would be sent when the network heals,
// long after another path has taken over: its connection is reset. After a logout that is answered it is closed in order.
func TestAConnectionThatFailedForSilenceIsCut(t *testing.T) {
	for name, silent := range map[string]bool{"silence": true, "logout": false} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			f := newFake(t)
			f.stream = func() (net.Conn, net.Conn) {
				a, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Error(err)
				}
				b, err := l.Accept()
				if err != nil {
					t.Error(err)
				}
				return a, b
			}
			o := Options{Keepalive: time.Hour}
			if silent {
				o.Keepalive = 20 * time.Millisecond
			}
			v := f.mustOpen(o, "")
			end := make(chan error, 1)
			f.set(func() {
				f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
					if silent && b.Opcode() != iscsi.OpNopOut || !silent && b.Opcode() != iscsi.OpLogoutReq {
						return false
					}
					f.set(func() { f.refuse = errors.New("nobody is to come again") })
					if !silent {
						c.handle(b, nil)
					}
					_, err := io.Copy(io.Discard, c.nc)
					select {
					case end <- err:
					default:
					}
					return true
				}
			})
			if !silent {
				if err := v.Close(); err != nil {
					t.Error(err)
				}
			}
			select {
			case err := <-end:
				if errors.Is(err, syscall.ECONNRESET) != silent {
					t.Errorf("the connection ends with %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the connection does not end")
			}
		})
	}
}
