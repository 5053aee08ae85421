package block

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// Close returns when Done of every request has: also of one that a path gives back, for another to take, while the volume is closed.
func TestCloseWaitsForRequestsThatAPathGivesBack(t *testing.T) {
	for name, c := range map[string]struct {
		o      Options
		answer func(c *fakeConn, itt uint32) // what the target says of the read when it has been asked for a logout, before it answers that
	}{
		"the path is in standby": {Options{}, func(c *fakeConn, itt uint32) {
			c.status(itt, statusCheck, fixedSense(keyNotReady, 0x04, 0x0b))
		}},
		"the command was aborted": {Options{CommandTimeout: 5 * time.Second}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				v := f.openPaths(c.o, 2)
				var mu sync.Mutex // the hook runs for each connection
				asked, conn, abort := uint32(0), (*fakeConn)(nil), iscsi.TaskResponse{}
				f.set(func() {
					f.hook = func(fc *fakeConn, b iscsi.BHS, _ []byte) bool {
						mu.Lock()
						defer mu.Unlock()
						switch {
						case b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opRead16:
							fc.expCmd, asked, conn = b.CmdSN()+1, b.ITT(), fc
							return true
						case b.Opcode() == iscsi.OpTaskRequest:
							abort = iscsi.TaskResponse{ITT: b.ITT()}
							return true
						case b.Opcode() == iscsi.OpLogoutReq && fc == conn:
							if c.answer != nil {
								c.answer(fc, asked)
							} else {
								abort.Numbers = fc.numbers()
								fc.send(&abort, nil)
							}
						}
						return false
					}
				})
				buf, err := v.Memory().Get(512)
				if err != nil {
					t.Fatal(err)
				}
				told, letGo := make(chan error, 1), make(chan struct{})
				r := &blockdev.Request{Op: blockdev.Read, Length: 512}
				r.Data = append(r.Data, buf.Span())
				r.Done = func(r *blockdev.Request) {
					told <- r.Err
					<-letGo
				}
				v.Submit(r)
				synctest.Wait()
				if c.answer == nil {
					time.Sleep(8 * time.Second) // the abort is out
				}
				closed := make(chan error, 1)
				go func() { closed <- v.Close() }()
				if err := <-told; !errors.Is(err, blockdev.ErrClosed) {
					t.Error(err)
				}
				time.Sleep(time.Minute)
				select {
				case err := <-closed:
					t.Errorf("Close returns while Done runs: %v", err)
					closed <- nil
				default:
				}
				close(letGo)
				if err := <-closed; err != nil {
					t.Error(err)
				}
				buf.Release()
				synctest.Wait()
			})
		})
	}
}
