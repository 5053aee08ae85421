package transporttest

import (
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// randomWork lets both ends do anything that is allowed, in any order, and compares all memory with a model.
func randomWork(s *scene) {
	const arena = 64 << 10
	rapid.Check(s, func(t *rapid.T) {
		a, b := s.connect(setup{})
		defer func() {
			a.shut()
			b.shut()
			a.used, b.used = 0, 0
		}()
		type side struct {
			*end
			arena  mem.Span
			model  []byte
			w      transport.Window
			remote transport.Remote
			token  uint64
		}
		var sides [2]*side
		for i, e := range []*end{a, b} {
			x := &side{end: e, arena: e.filled(arena, byte(i+1)), model: pattern(arena, byte(i+1))}
			x.w = e.window(transport.RemoteRead|transport.RemoteWrite, x.arena)
			x.remote = x.w.Remote()
			sides[i] = x
		}
		steps := rapid.IntRange(1, 25).Draw(t, "steps")
		for range steps {
			i := rapid.IntRange(0, 1).Draw(t, "side")
			me, peer := sides[i], sides[1-i]
			me.token++
			n := rapid.SampledFrom([]int{0, 1, 3, 64, 1447, 1448, 1449, 4096, 16383, 16385, 40000}).Draw(t, "bytes")
			src := rapid.IntRange(0, arena-n).Draw(t, "from")
			dst := rapid.IntRange(0, arena-n).Draw(t, "to")
			there := transport.Remote{STag: peer.remote.STag, Off: peer.remote.Off + uint64(dst)}
			op := rapid.SampledFrom([]string{"write", "read", "send", "sendinv", "rebind"}).Draw(t, "op")
			if op == "sendinv" && !(s.caps.RemoteInv && s.caps.PerIOWindows) {
				op = "send"
			}
			local := cutAt(me.arena, src, n, rapid.IntRange(1, min(4, s.caps.MaxSGE)).Draw(t, "pieces"))
			switch op {
			case "write":
				mark := peer.used
				peer.recv(me.token, 8)
				me.post(
					transport.WR{Op: transport.OpWrite, Local: local, Remote: there},
					transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: me.token})
				peer.want(transport.OpRecv, me.token)
				me.want(transport.OpSend, me.token)
				copy(peer.model[dst:dst+n], me.model[src:src+n])
				peer.used = mark
			case "read":
				me.post(transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: me.token, Local: []mem.Span{me.arena.Cut(src, n)}, Remote: there})
				me.want(transport.OpRead, me.token)
				copy(me.model[src:src+n], peer.model[dst:dst+n])
			case "send", "sendinv":
				if k, err := peer.qp.PostRecv([]transport.Recv{{Token: me.token, Buf: peer.arena.Cut(dst, n)}}); k != 1 || err != nil {
					t.Fatalf("post a receive: %v", err)
				}
				wr := transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: me.token, Local: local}
				if op == "sendinv" {
					wr.Op, wr.Inv = transport.OpSendInv, peer.remote.STag
				}
				me.post(wr)
				if c := peer.want(transport.OpRecv, me.token); int(c.Len) != n || c.Inv != wr.Inv {
					t.Fatalf("%s of %d bytes arrived as %+v", op, n, c)
				}
				me.want(wr.Op, me.token)
				copy(peer.model[dst:dst+n], me.model[src:src+n])
				if op == "sendinv" {
					peer.bind(peer.w, transport.RemoteRead|transport.RemoteWrite, peer.arena)
					peer.remote = peer.w.Remote()
				}
			case "rebind":
				me.invalidate(me.w)
				me.bind(me.w, transport.RemoteRead|transport.RemoteWrite, me.arena)
				me.remote = me.w.Remote()
			}
		}
		for _, x := range sides {
			x.same("all memory", x.arena.Bytes(), x.model)
		}
	})
}

// cutAt cuts n bytes from off in up to k pieces.
func cutAt(s mem.Span, off, n, k int) []mem.Span {
	var spans []mem.Span
	for left := n; left > 0; {
		piece := min(left, n/k+1)
		spans = append(spans, s.Cut(off+n-left, piece))
		left -= piece
	}
	return spans
}
