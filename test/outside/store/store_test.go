package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"sluice.example/outside/local"
	"sluice.example/outside/store"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clients serves a store over TCP and by two fabrics, and gives a client by each.
func clients(t *testing.T, o rpcserver.Options) map[string]*rpcclient.Client {
	t.Helper()
	srv := rpcserver.NewServer(o, &store.Store{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 3)
	go func() { served <- srv.ServeTCP(l) }()
	all := map[string]*rpcclient.Client{"tcp": rpcclient.NewClient(rpcclient.TCP(l.Addr().String()), rpcclient.Options{})}
	f := local.New()
	var ends []func() error
	for name, devs := range map[string][2]transport.Device{"local": {f.Device(), f.Device()}, "iwarp": {iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})}} {
		rl, err := devs[0].Listen(t.Context(), "127.0.0.1:0")
		must(t, err)
		go func() { served <- srv.ServeRDMA(devs[0], rl) }()
		r, err := rpcclient.NewRDMA(devs[1])
		must(t, err)
		all[name] = rpcclient.NewClient(r.Dialer(rl.Addr().String()), rpcclient.Options{})
		ends = append(ends, r.Close, devs[1].Close, devs[0].Close)
	}
	t.Cleanup(func() {
		for _, c := range all {
			must(t, c.Close())
		}
		must(t, srv.Close(context.Background()))
		for range 3 {
			if err := <-served; !errors.Is(err, rpcserver.ErrServerClosed) {
				t.Error(err)
			}
		}
		for _, end := range ends {
			must(t, end())
		}
	})
	return all
}

// user is an AUTH_SYS credential (RFC 5531 appendix A).
func user(uid uint32) rpcclient.Auth {
	b := rpcserver.AppendString(make([]byte, 4), "host")
	for _, v := range []uint32{uid, uid, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return rpcclient.Auth{Flavor: rpcserver.AuthSys, Body: b}
}

func put(c *rpcclient.Client, uid uint32, name string, value []byte) (uint32, error) {
	args := binary.BigEndian.AppendUint32(rpcserver.AppendString(nil, name), uint32(len(value)))
	call := rpcclient.Call{Prog: store.Prog, Vers: store.Vers, Proc: store.ProcPut, Cred: user(uid), Args: args, Data: value}
	if err := c.Do(context.Background(), &call); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(call.Results), nil
}

func get(c *rpcclient.Client, name string) ([]byte, uint32, error) {
	call := rpcclient.Call{Prog: store.Prog, Vers: store.Vers, Proc: store.ProcGet, Args: rpcserver.AppendString(nil, name), Sink: make([]byte, rpcserver.MaxPayload)}
	if err := c.Do(context.Background(), &call); err != nil {
		return nil, 0, err
	}
	if st := binary.BigEndian.Uint32(call.Results); st != store.OK {
		return nil, st, nil
	}
	n := int(binary.BigEndian.Uint32(call.Results[4:]))
	if err := call.Result(call.Results[8:], n); err != nil {
		return nil, 0, err
	}
	return call.Sink[:n], store.OK, nil
}

// A program that Sluice has never heard of is served over a stream and over fabrics, its values moved by RDMA; with each call on a worker too.
func TestAProgramOfOnesOwn(t *testing.T) {
	for _, o := range []rpcserver.Options{{}, {NoInline: true}} {
		for name, c := range clients(t, o) {
			for i, n := range []int{0, 1, 3, 4096, 65537, rpcserver.MaxPayload - 1, rpcserver.MaxPayload} {
				key, want := name+string(rune('a'+i)), make([]byte, n)
				for i := range want {
					want[i] = byte(i*7 + n)
				}
				if st, err := put(c, 1000, key, want); st != store.OK || err != nil {
					t.Fatalf("%s: put %d bytes: %d, %v", name, n, st, err)
				}
				if st, err := put(c, 1001, key, []byte("another's")); st != store.NotYours || err != nil {
					t.Errorf("%s: another user puts: %d, %v", name, st, err)
				}
				if got, st, err := get(c, key); st != store.OK || err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: get %d bytes: %d bytes, %d, %v", name, n, len(got), st, err)
				}
			}
			if _, st, err := get(c, "none"); st != store.None || err != nil {
				t.Errorf("%s: a name without a value: %d, %v", name, st, err)
			}
		}
	}
}

func TestWhatAProgramRefuses(t *testing.T) {
	for name, c := range clients(t, rpcserver.Options{}) {
		for why, tc := range map[string]struct {
			call rpcclient.Call
			want rpcserver.AcceptStat
		}{
			"no such program":    {rpcclient.Call{Prog: store.Prog + 1, Vers: 1, Proc: 1}, rpcserver.ProgUnavail},
			"no such procedure":  {rpcclient.Call{Prog: store.Prog, Vers: 1, Proc: 3, Args: make([]byte, 4)}, rpcserver.ProcUnavail},
			"a name too long":    {rpcclient.Call{Prog: store.Prog, Vers: 1, Proc: 2, Args: rpcserver.AppendOpaque(nil, make([]byte, 256))}, rpcserver.GarbageArgs},
			"a name that ends":   {rpcclient.Call{Prog: store.Prog, Vers: 1, Proc: 2, Args: []byte{0, 0, 0, 8, 'n', 'a', 'm', 'e'}}, rpcserver.GarbageArgs},
			"a value that ends":  {rpcclient.Call{Prog: store.Prog, Vers: 1, Proc: 1, Cred: user(1), Args: append(rpcserver.AppendString(nil, "name"), 0, 0, 0, 9)}, rpcserver.GarbageArgs},
			"a value of no user": {rpcclient.Call{Prog: store.Prog, Vers: 1, Proc: 1, Args: append(rpcserver.AppendString(nil, "name"), 0, 0, 0, 4), Data: []byte("data")}, rpcserver.GarbageArgs},
		} {
			var no *rpcclient.ReplyError
			if err := c.Do(t.Context(), &tc.call); !errors.As(err, &no) || rpcserver.AcceptStat(no.Accept) != tc.want || no.Denied {
				t.Errorf("%s: %s: %v, not %v", name, why, err, tc.want)
			}
		}
		var no *rpcclient.ReplyError
		if err := c.Do(t.Context(), &rpcclient.Call{Prog: store.Prog, Vers: 2, Proc: 1}); !errors.As(err, &no) || no.Low != store.Vers || no.High != store.Vers {
			t.Errorf("%s: another version: %v", name, err)
		}
	}
}
