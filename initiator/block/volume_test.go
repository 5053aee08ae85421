package block

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

func TestVolumeOverAStream(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{Piece: 64 << 10}, "")
	want := bytes.Repeat([]byte("block of a disk!"), 200<<10/16)
	if _, err := v.WriteAt(want, 512); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := v.ReadAt(got, 512); err != nil || !bytes.Equal(got, want) {
		t.Fatal(err)
	}
	if err := v.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if g := v.Unit(); g.Vendor != "FAKE" || g.Product != "A DISK" || g.Serial != "fake" || g.Size != fakeSize {
		t.Fatalf("%+v", g)
	}
	// The fake has no WRITE SAME: zeroes are written as data.
	if err := v.WriteZeroes(context.Background(), 0, 100<<10, false); err != nil {
		t.Fatal(err)
	}
	if _, err := v.ReadAt(got[:100<<10], 0); err != nil || !bytes.Equal(got[:100<<10], make([]byte, 100<<10)) {
		t.Fatal(err)
	}
	if !errors.Is(v.Discard(context.Background(), 0, 512), blockdev.ErrUnsupported) {
		t.Fatal("a target without UNMAP discards")
	}
}

// Whatever a target says that it must not say ends the session with the clause, harms nothing and is survived.
func TestTargetsThatBreakRules(t *testing.T) {
	read := func(b iscsi.BHS) bool { return b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opRead16 }
	write := func(b iscsi.BHS) bool { return b.Opcode() == iscsi.OpSCSICommand && b.CDB()[0] == opWrite16 }
	for name, c := range map[string]struct {
		on     func(iscsi.BHS) bool
		say    func(c *fakeConn, b iscsi.BHS)
		clause string
	}{
		"response to no command": {read, func(c *fakeConn, b iscsi.BHS) { c.status(b.ITT()+1, 0, nil) }, "11.4"},
		"Data-In to no command": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT() ^ 1<<20, Numbers: c.numbers()}, make([]byte, 512))
		}, "11.7"},
		"Data-In beyond the end": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT(), Offset: b.EDTL() - 4, Numbers: c.numbers()}, make([]byte, 512))
		}, "11.7"},
		"Data-In with a wrapping offset": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT(), Offset: 0xffffff00, Numbers: c.numbers()}, make([]byte, 512))
		}, "11.7"},
		"Data-In out of order": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT(), Offset: 512, Numbers: c.numbers()}, make([]byte, 512))
		}, "11.7"},
		"Data-In to a write": {write, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT(), Numbers: c.numbers()}, make([]byte, 512))
		}, "11.7"},
		"GOOD without the data": {read, func(c *fakeConn, b iscsi.BHS) { c.status(b.ITT(), 0, nil) }, "11.4.5"},
		"GOOD with half of the data": {read, func(c *fakeConn, b iscsi.BHS) {
			n := c.numbers()
			c.statSN--
			c.send(&iscsi.DataIn{ITT: b.ITT(), TTT: iscsi.Reserved, Numbers: n}, make([]byte, 2048))
			c.status(b.ITT(), 0, nil)
		}, "11.4.5"},
		"GOOD in a Data-In that is not the last": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.DataIn{ITT: b.ITT(), TTT: iscsi.Reserved, Final: true, HasStatus: true, Numbers: c.numbers()}, make([]byte, 512))
		}, "11.4.5"},
		"R2T to a read": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.R2T{ITT: b.ITT(), Length: 512, Numbers: c.numbers()}, nil)
		}, "11.8"},
		"R2T beyond the end": {write, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.R2T{ITT: b.ITT(), Offset: b.EDTL(), Length: 4, Numbers: c.numbers()}, nil)
		}, "11.8"},
		"R2T of nothing": {write, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.R2T{ITT: b.ITT(), Numbers: c.numbers()}, nil)
		}, "11.8"},
		"too long a response": {read, func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.SCSIResponse{ITT: b.ITT(), Numbers: c.numbers()}, make([]byte, 20<<10))
		}, "11.2.1.6"},
		"a login response": {read, func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.LoginResponse{Numbers: c.numbers()}, nil) }, "11.2.1.2"},
		"a request":        {read, func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.NopOut{}, nil) }, "11.2.1.2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			v := f.mustOpen(Options{MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}, "")
			seen := make(chan error, 1)
			said := false
			f.set(func() {
				f.hook = func(fc *fakeConn, b iscsi.BHS, _ []byte) bool {
					if said || !c.on(b) {
						return false
					}
					said = true
					c.say(fc, b)
					return true
				}
			})
			s := v.paths[0].sess.Load()
			go func() { <-s.ended; seen <- s.reason() }()
			want := bytes.Repeat([]byte{7}, 4096)
			if _, err := v.WriteAt(want, 0); err != nil {
				t.Fatal(err)
			}
			buf, err := v.Memory().Get(4096)
			if err != nil {
				t.Fatal(err)
			}
			defer buf.Release()
			data := buf.Span().Cut(0, 4096)
			copy(data.Bytes(), bytes.Repeat([]byte{0xee}, 4096)) // what nothing has been read into is not what was written
			if err := v.ReadSpans(t.Context(), 0, data); err != nil || !bytes.Equal(data.Bytes(), want) {
				t.Fatalf("% x ... % x, %v", data.Bytes()[:4], data.Bytes()[4092:], err)
			}
			err = <-seen
			var pe *iscsi.ProtocolError
			if !errors.As(err, &pe) || pe.Clause != c.clause {
				t.Fatalf("%v", err)
			}
		})
	}
}

// A raw command has moved what has come, whatever the target says of it.
func TestARawCommandHasMovedWhatHasCome(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{}, "")
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opModeSense6 {
				return false
			}
			c.expCmd = b.CmdSN() + 1
			n := c.numbers()
			c.statSN--
			c.send(&iscsi.DataIn{ITT: b.ITT(), TTT: iscsi.Reserved, Numbers: n}, []byte("abcd"))
			c.status(b.ITT(), 0, nil)
			return true
		}
	})
	b := make([]byte, 64)
	if n, err := v.Raw(t.Context(), []byte{opModeSense6, 0, 0x3f, 0, 64, 0}, b, true); n != 4 || err != nil || string(b[:4]) != "abcd" {
		t.Errorf("%d bytes, %v, %q", n, err, b[:4])
	}
}

func TestStatusesThatAskForAnotherTry(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{}, "")
	answers := []func(c *fakeConn, itt uint32){
		func(c *fakeConn, itt uint32) { c.status(itt, statusBusy, nil) },
		func(c *fakeConn, itt uint32) { c.status(itt, statusTaskSetFull, nil) },
		func(c *fakeConn, itt uint32) { c.status(itt, statusCheck, fixedSense(keyUnitAttention, 0x29, 0)) },
		func(c *fakeConn, itt uint32) { c.status(itt, statusCheck, fixedSense(keyAborted, 0x4b, 0)) },
		func(c *fakeConn, itt uint32) { c.status(itt, statusTaskAborted, nil) },
		func(c *fakeConn, itt uint32) { c.status(itt, statusCheck, fixedSense(keyNotReady, 0x04, 0x01)) },
	}
	tries := 0
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opRead16 || tries == len(answers) {
				return false
			}
			c.expCmd = b.CmdSN() + 1
			answers[tries](c, b.ITT())
			tries++
			return true
		}
	})
	if _, err := v.ReadAt(make([]byte, 512), 0); err != nil || tries != len(answers) {
		t.Fatal(tries, err)
	}
	for _, c := range []struct {
		status uint8
		sense  []byte
		want   error
	}{{statusReservationConflict, nil, ErrReserved}, {statusCheck, fixedSense(keyMedium, 0x11, 0), blockdev.ErrMedium},
		{statusCheck, fixedSense(keyDataProtect, 0x27, 0), blockdev.ErrReadOnly}, {statusCheck, fixedSense(keyIllegalRequest, 0x21, 0), blockdev.ErrRange}} {
		f.set(func() {
			f.hook = func(fc *fakeConn, b iscsi.BHS, _ []byte) bool {
				if b.Opcode() != iscsi.OpSCSICommand {
					return false
				}
				fc.expCmd = b.CmdSN() + 1
				fc.status(b.ITT(), c.status, c.sense)
				return true
			}
		})
		if _, err := v.ReadAt(make([]byte, 512), 0); !errors.Is(err, c.want) {
			t.Errorf("%v is not %v", err, c.want)
		}
	}
	f.set(func() { f.hook = nil })
}

// A lost session comes back with the same ISID and a zero TSIH, which is what makes the target end the old one; pauses
// between attempts grow to the limit and no further.
func TestReconnectInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{MinBackoff: time.Second, MaxBackoff: 8 * time.Second, ReconnectLimit: -1}, "")
		f.set(func() { f.refuse = &net.OpError{Op: "dial", Err: errors.New("nobody there")}; f.dials = 0 })
		f.drop()
		synctest.Wait()
		done := make(chan error, 1)
		go func() { _, err := v.WriteAt(make([]byte, 512), 0); done <- err }()
		time.Sleep(60 * time.Second)
		var n int
		f.set(func() { n = f.dials; f.refuse = nil })
		// Pauses of 0, 1, 2, 4, 8, 8, ... seconds, each up to a quarter longer.
		if n < 7 || n > 12 {
			t.Errorf("%d attempts in a minute", n)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		f.set(func() {
			first, last := f.logins[0], f.logins[len(f.logins)-1]
			if first.ISID != last.ISID || last.TSIH != 0 || len(f.logins) < 2 {
				t.Errorf("%+v %+v", first, last)
			}
		})
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func TestTheLimitInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{ReconnectLimit: 10 * time.Second}, "")
		f.set(func() { f.refuse = errors.New("nobody there") })
		f.drop()
		begin := time.Now()
		_, err := v.ReadAt(make([]byte, 512), 0)
		if d := time.Since(begin); !errors.Is(err, ErrNoPath) || d < 9*time.Second || d > 11*time.Second || !strings.HasPrefix(err.Error(), "block: the target cannot be reached: it was away for longer than the limit of 10s: ") || !strings.Contains(err.Error(), "nobody there") {
			t.Errorf("%v after %v", err, d)
		}
		begin = time.Now()
		if _, err = v.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrNoPath) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		f.set(func() { f.refuse = nil })
		time.Sleep(10 * time.Second)
		if _, err = v.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// io.EOF says that the volume ends, and nothing else does: a connection that breaks within a PDU is no end of what is copied.
func TestABrokenConnectionIsNoEndOfTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{ReconnectLimit: 10 * time.Second}, "")
		f.set(func() {
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opRead16 {
					return false
				}
				f.set(func() { f.ignored = true }) // no other reason takes the place of this one: the next login hangs
				pdu := iscsi.Append(nil, &iscsi.DataIn{ITT: b.ITT(), TTT: iscsi.Reserved, Numbers: c.numbers()})
				iscsi.BHS(pdu).SetDataLen(512)
				_, _ = c.nc.Write(append(pdu, make([]byte, 100)...))
				_ = c.nc.Close()
				return true
			}
		})
		if n, err := io.Copy(io.Discard, v.Reader(t.Context())); n != 0 || !errors.Is(err, ErrNoPath) || errors.Is(err, io.EOF) {
			t.Errorf("a copy ends after %d bytes with %v", n, err)
		}
		var se *SessionError
		if err := v.Paths()[0].Err; errors.Is(err, io.EOF) || !errors.As(err, &se) {
			t.Errorf("the path: %v", err)
		}
		if _, err := v.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrNoPath) || errors.Is(err, io.EOF) {
			t.Errorf("a read ends with %v", err)
		}
		closeAll(t, f, v)
	})
}

// A target that is silent is asked, and then given up; a quiet one that answers is kept.
func TestKeepaliveInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{}, "")
		s := v.paths[0].sess.Load()
		time.Sleep(time.Hour)
		select {
		case <-s.ended:
			t.Error(s.reason())
		default:
		}
		f.set(func() { f.ignored = true })
		begin := time.Now()
		<-s.ended
		if d := time.Since(begin); d < 2*keepalive || d > 5*keepalive {
			t.Errorf("given up after %v", d)
		}
		f.set(func() { f.ignored = false })
		f.drop()
		if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// The command window is the target's to open: with one command allowed, one is out at a time.
func TestTheCommandWindow(t *testing.T) {
	f := newFake(t)
	f.window = 1
	v := f.mustOpen(Options{}, "")
	var mu sync.Mutex
	next := uint32(0)
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			if b.Opcode() == iscsi.OpSCSICommand {
				if next != 0 && b.CmdSN() != next || iscsi.SNLess(c.expCmd, b.CmdSN()) {
					t.Errorf("CmdSN %d while %d was expected", b.CmdSN(), c.expCmd)
				}
				next = b.CmdSN() + 1
			}
			return false
		}
	})
	var wg sync.WaitGroup
	for k := range 50 {
		wg.Go(func() {
			if _, err := v.WriteAt(make([]byte, 512), int64(k)*512); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestTargetsRequests(t *testing.T) {
	f := newFake(t)
	v := f.mustOpen(Options{MinBackoff: time.Millisecond}, "")
	pong, text := make(chan iscsi.BHS, 1), make(chan iscsi.BHS, 1)
	asked := false
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			switch {
			case b.Opcode() == iscsi.OpNopOut && b.ITT() == iscsi.Reserved:
				pong <- append(iscsi.BHS(nil), b...)
			case b.Opcode() == iscsi.OpTextRequest:
				text <- append(iscsi.BHS(nil), b...)
				return true
			case b.Opcode() == iscsi.OpSCSICommand && !asked:
				asked = true
				n := c.numbers()
				c.statSN--
				c.send(&iscsi.NopIn{ITT: iscsi.Reserved, TTT: 42, LUN: 9, Numbers: n}, nil)
				c.send(&iscsi.Async{Event: iscsi.AsyncNegotiate, Numbers: c.numbers()}, nil)
			}
			return false
		}
	})
	if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
		t.Fatal(err)
	}
	if b := <-pong; b.TTT() != 42 || b.LUN() != 9 || !b.Immediate() {
		t.Fatalf("% x", b)
	}
	<-text
	s := v.paths[0].sess.Load()
	asked = false
	f.set(func() {
		f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
			if b.Opcode() == iscsi.OpSCSICommand && !asked {
				asked = true
				c.send(&iscsi.Async{Event: iscsi.AsyncLogout, Param3: 1, Numbers: c.numbers()}, nil)
				return true
			}
			return false
		}
	})
	if _, err := v.ReadAt(make([]byte, 512), 0); err != nil {
		t.Fatal(err)
	}
	<-s.ended
}

func TestLoginsThatGoWrong(t *testing.T) {
	for name, say := range map[string]func(c *fakeConn, b iscsi.BHS){
		"refused": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{Status: iscsi.LoginNotFound, ITT: b.ITT()}, nil)
		},
		"moved": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{Status: iscsi.LoginMovedPermanently, ITT: b.ITT(), CSG: 1}, []byte("TargetAddress=[::1]:3261,1\x00"))
		},
		"other tag": func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.LoginResponse{ITT: 99, CSG: 1}, nil) },
		"other version": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1, VersionActive: 3}, nil)
		},
		"other stage": func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.LoginResponse{ITT: b.ITT()}, nil) },
		"reserved stage": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1, NSG: 2, Transit: true}, nil)
		},
		"no handle": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1, NSG: 3, Transit: true}, nil)
		},
		"another PDU": func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.NopIn{}, nil) },
		"rejected":    func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.Reject{Reason: iscsi.RejectProtocol}, nil) },
		"endless":     func(c *fakeConn, b iscsi.BHS) { c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1}, nil) },
		"too much": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1}, make([]byte, 20<<10))
		},
		"bad answer": func(c *fakeConn, b iscsi.BHS) {
			c.send(&iscsi.LoginResponse{ITT: b.ITT(), CSG: 1}, []byte("MaxBurstLength=16777215\x00"))
		},
		"hangs up": func(c *fakeConn, b iscsi.BHS) { _ = c.nc.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
				if b.Opcode() == iscsi.OpLoginRequest {
					say(c, b)
					return true
				}
				return false
			}
			_, err := f.open(Options{}, "")
			if err == nil {
				t.Fatal("it opens")
			}
			var ce *ConnectError
			if hung := name == "hangs up"; errors.Is(err, ErrNoPath) != hung || errors.As(err, &ce) != hung {
				t.Fatal(err)
			}
			if name == "moved" && !strings.Contains(err.Error(), "[::1]:3261") {
				t.Fatal(err)
			}
		})
	}
}

// A login without an answer ends, and with a reason.
func TestASilentLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.ignored = true
		var ce *ConnectError
		if _, err := f.open(Options{}, ""); !errors.Is(err, ErrNoPath) || !errors.As(err, &ce) || !strings.Contains(err.Error(), "did not answer") {
			t.Error(err)
		}
	})
}

// What ends an opening behind the login is told apart as well, and a context is not taken for the target.
func TestAnOpeningThatDoesNotEnd(t *testing.T) {
	command := func(b iscsi.BHS) bool { return b.Opcode() == iscsi.OpSCSICommand }
	for name, c := range map[string]struct {
		patience time.Duration
		on       func(b iscsi.BHS) bool
		close    bool
		want     error
	}{
		"INQUIRY has no answer":       {time.Hour, command, false, ErrTimeout},
		"INQUIRY ends the connection": {time.Hour, command, true, ErrNoPath},
		"the context ends first":      {time.Second, func(b iscsi.BHS) bool { return b.Opcode() == iscsi.OpLoginRequest }, false, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.hook = func(fc *fakeConn, b iscsi.BHS, _ []byte) bool {
					if c.on(b) && c.close {
						_ = fc.nc.Close()
					}
					return c.on(b)
				}
				i, err := New(Options{DialTCP: f.dial})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				v, err := i.Open(ctx, "iscsi://fake/iqn.2026-01.org.example:fake/0")
				if err == nil {
					_ = v.Close()
				}
				for _, e := range []error{ErrTimeout, ErrNoPath, context.DeadlineExceeded} {
					if errors.Is(err, e) != (e == c.want) {
						t.Errorf("%v is %v: %t", err, e, e != c.want)
					}
				}
				f.drop()
				f.wg.Wait()
				if err := i.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A command that ends with RECOVERED ERROR has ended well, and has to have moved all of its data as one that ends with GOOD has
// (SPC-4 section 4.5.6, RFC 7143 section 11.4.5.1).
func TestARecoveredErrorDoesNotHideThatDataIsMissing(t *testing.T) {
	for residual, want := range map[uint32]error{0: nil, 512: blockdev.ErrMedium} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			v := f.mustOpen(Options{Keepalive: time.Hour}, "")
			f.set(func() {
				f.hook = func(c *fakeConn, b iscsi.BHS, _ []byte) bool {
					if b.Opcode() != iscsi.OpSCSICommand || b.CDB()[0] != opWrite16 {
						return false
					}
					c.expCmd = b.CmdSN() + 1
					sense := fixedSense(keyRecovered, 0x17, 0)
					c.send(&iscsi.SCSIResponse{Status: statusCheck, ITT: b.ITT(), Underflow: residual > 0, Residual: residual, Numbers: c.numbers()},
						append([]byte{0, byte(len(sense))}, sense...))
					return true
				}
			})
			if err := <-goWrite(v, 1); !errors.Is(err, want) {
				t.Errorf("residual %d: %v", residual, err)
			}
			closeAll(t, f, v)
		})
	}
}
