package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// The target ports of the three transports, and the target port groups that they are in.
const (
	iserPort, tcpPort, srpPort    = 1, 2, 9
	iserGroup, tcpGroup, srpGroup = 11, 12, 19
)

// way is one host's way to the volume, over one transport.
type way struct {
	t     *testing.T
	name  string
	port  uint16
	group uint16
	proto byte   // protocol identifier (SPC-4 table 438)
	key   uint64 // that it registers
	do    func(cdb, out []byte, in int) answer
}

// answer is how a command ended.
type answer struct {
	status, key byte   // SCSI status, sense key
	asc         uint16 // additional sense code and qualifier
	data        []byte
}

func (a answer) String() string {
	return fmt.Sprintf("status %02X sense %X/%04X", a.status, a.key, a.asc)
}

const (
	conflict = 0x18
	checkCo  = 0x02
)

// overVolume runs commands on a volume of the block initiator.
func overVolume(t *testing.T, v *block.Volume) func(cdb, out []byte, in int) answer {
	return func(cdb, out []byte, in int) answer {
		t.Helper()
		data := out
		if in > 0 {
			data = make([]byte, in)
		}
		n, err := v.Raw(t.Context(), cdb, data, in > 0)
		var sense *block.SenseError
		var status *block.StatusError
		switch {
		case errors.As(err, &sense):
			return answer{checkCo, sense.Key, uint16(sense.ASC)<<8 | uint16(sense.ASCQ), nil}
		case errors.As(err, &status):
			return answer{status: status.Status}
		case err != nil:
			t.Fatal(err)
		case in == 0:
			return answer{}
		}
		return answer{data: data[:n]}
	}
}

// overChannel runs them on a channel of SRP.
func overChannel(t *testing.T, c *srpinit.Channel) func(cdb, out []byte, in int) answer {
	return func(cdb, out []byte, in int) answer {
		t.Helper()
		r := c.Do(t.Context(), srpinit.Command{CDB: cdb, Out: out, In: in})
		must(t, r.Err)
		a := answer{status: r.Status}
		switch {
		case r.Status == checkCo && r.Sense[0]&0x7F < 0x72:
			a.key, a.asc = r.Sense[2]&0x0F, binary.BigEndian.Uint16(r.Sense[12:])
		case r.Status == checkCo:
			a.key, a.asc = r.Sense[1]&0x0F, binary.BigEndian.Uint16(r.Sense[2:])
		case r.Status == 0 && in > 0:
			a.data = r.In[:in-int(r.InResidual)]
		}
		return a
	}
}

// good runs a command that must succeed; refused one that must end with a status.
func (w *way) good(cdb, out []byte, in int) []byte {
	w.t.Helper()
	a := w.do(cdb, out, in)
	if a.status != 0 {
		w.t.Fatalf("% X over %s: %v", cdb, w.name, a)
	}
	return a.data
}

func (w *way) refused(status byte, cdb, out []byte) {
	w.t.Helper()
	if a := w.do(cdb, out, 0); a.status != status {
		w.t.Errorf("% X over %s: %v, want status %02X", cdb, w.name, a, status)
	}
}

var testUnitReady = make([]byte, 6)

// ready takes the unit attentions that there are.
func (w *way) ready() {
	w.t.Helper()
	for range 8 {
		if a := w.do(testUnitReady, nil, 0); a.status == 0 {
			return
		} else if a.key != 6 {
			w.t.Fatalf("over %s: %v", w.name, a)
		}
	}
	w.t.Fatalf("the unit does not become ready over %s", w.name)
}

// told fails unless the next command is told of something, and the one after it of nothing.
func (w *way) told(asc uint16) {
	w.t.Helper()
	if a := w.do(testUnitReady, nil, 0); a.key != 6 || a.asc != asc {
		w.t.Errorf("%s is told %v, want the unit attention %04X", w.name, a, asc)
	}
	w.quiet()
}

func (w *way) quiet() {
	w.t.Helper()
	if a := w.do(testUnitReady, nil, 0); a.status != 0 {
		w.t.Errorf("%s is told %v, and there is nothing to tell", w.name, a)
	}
}

func block10(op byte, lba int) []byte { return []byte{op, 0, 0, 0, 0, byte(lba), 0, 0, 1, 0} }

func (w *way) write(lba int, b []byte) { w.t.Helper(); w.good(block10(0x2A, lba), b, 0) }
func (w *way) read(lba int) []byte     { w.t.Helper(); return w.good(block10(0x28, lba), nil, 512) }

// reserve is PERSISTENT RESERVE OUT.
func (w *way) reserve(action, kind byte, key, sa uint64) answer {
	w.t.Helper()
	list := make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], sa)
	return w.do([]byte{0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0}, list, 0)
}

func (w *way) mustReserve(action, kind byte, key, sa uint64) {
	w.t.Helper()
	if a := w.reserve(action, kind, key, sa); a.status != 0 {
		w.t.Fatalf("PERSISTENT RESERVE OUT action %d over %s: %v", action, w.name, a)
	}
}

// prin is the parameter data of PERSISTENT RESERVE IN behind its header.
func (w *way) prin(action byte) []byte {
	w.t.Helper()
	b := w.good([]byte{0x5E, action, 0, 0, 0, 0, 0, 4, 0, 0}, nil, 1024)
	return b[8 : 8+binary.BigEndian.Uint32(b[4:])]
}

func (w *way) keys() (l []uint64) {
	w.t.Helper()
	for b := w.prin(0); len(b) > 0; b = b[8:] {
		l = append(l, binary.BigEndian.Uint64(b))
	}
	slices.Sort(l)
	return l
}

// holder is the key that READ RESERVATION names, and the type.
func (w *way) holder() (key uint64, kind byte) {
	w.t.Helper()
	if b := w.prin(1); len(b) > 0 {
		key, kind = binary.BigEndian.Uint64(b), b[13]&0x0F
	}
	return key, kind
}

// registrant is one descriptor of READ FULL STATUS.
type registrant struct {
	port   uint16
	holds  bool
	kind   byte
	id     string // the TransportID, its bytes
	client string // the initiator port's name that the TransportID has
}

func (w *way) status() map[uint64]registrant {
	w.t.Helper()
	m := map[uint64]registrant{}
	for b := w.prin(3); len(b) > 0; {
		n := 24 + int(binary.BigEndian.Uint32(b[20:]))
		id := b[24:n]
		r := registrant{port: binary.BigEndian.Uint16(b[18:]), holds: b[12]&1 != 0, kind: b[13] & 0x0F, id: string(id)}
		switch id[0] {
		case 0x45: // iSCSI, an initiator port
			r.client = strings.TrimRight(string(id[4:]), "\x00")
		case 0x04: // SRP
			r.client = wire.PortID(id[8:24]).Name()
		}
		m[binary.BigEndian.Uint64(b)] = r
		b = b[n:]
	}
	return m
}

// groups are the states of the target port groups, and the ports of each.
func (w *way) groups() (states map[uint16]scsi.AccessState, ports map[uint16][]uint16) {
	w.t.Helper()
	states, ports = map[uint16]scsi.AccessState{}, map[uint16][]uint16{}
	b := w.good([]byte{0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0}, nil, 1024)
	for b = b[4 : 4+binary.BigEndian.Uint32(b)]; len(b) > 0; {
		id, n := binary.BigEndian.Uint16(b[2:]), int(b[7])
		states[id] = scsi.AccessState(b[0] & 0x0F)
		for b = b[8:]; n > 0; n-- {
			ports[id] = append(ports[id], binary.BigEndian.Uint16(b[2:]))
			b = b[4:]
		}
	}
	return states, ports
}

// place is what the device identification page says of the port that the command came in by.
func (w *way) place() (port, group uint16, proto byte) {
	w.t.Helper()
	b := w.good([]byte{0x12, 1, 0x83, 4, 0, 0}, nil, 1024)
	for b = b[4 : 4+binary.BigEndian.Uint16(b[2:])]; len(b) > 0; b = b[4+int(b[3]):] {
		if b[1]>>4&3 != 1 { // of the target port
			continue
		}
		switch b[1] & 0x0F {
		case 4:
			port, proto = binary.BigEndian.Uint16(b[6:]), b[0]>>4
		case 5:
			group = binary.BigEndian.Uint16(b[6:])
		}
	}
	return port, group, proto
}

// serveSRP offers the stand's target over SRP as well, until the test ends.
func serveSRP(t *testing.T, s *served, group uint16) string {
	t.Helper()
	srv, err := srp.NewServer(srp.Options{Memory: s.Pool, Find: func(g uint16, target, _ scsi.SRPPort) (srp.Grant, error) {
		if target != srp.TargetPort(iqn, g) {
			return srp.Grant{}, errors.New("no such target")
		}
		return srp.Grant{Target: iqn, SCSI: s.SCSI}, nil
	}})
	must(t, err)
	l, err := s.rnic.Listen(t.Context(), "127.0.0.1:0")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(context.Background(), s.rnic, l, func() uint16 { return group }) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Close(context.Background()), <-done); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// threeWays is one volume and a host on each transport. The host on SRP has two channels, and dial logs it in anew.
type threeWays struct {
	*served
	iser, tcp, srp, srp2 *way
	all                  []*way
	dial                 func(flags byte) *srpinit.Channel
	first, second        *srpinit.Channel
}

var srpHost = wire.PortID{3: 7, 8: 0x50, 15: 0x34}

func newThreeWays(t *testing.T) *threeWays {
	t.Helper()
	s := stands(t, iwarp.Options{}, stand.BlockOptions{SCSI: scsi.TargetOptions{PortGroups: []scsi.PortGroup{
		{ID: iserGroup, State: scsi.ActiveOptimized, Ports: []uint16{iserPort}}, {ID: tcpGroup, State: scsi.ActiveNonOptimized, Ports: []uint16{tcpPort}},
		{ID: srpGroup, State: scsi.ActiveOptimized, Ports: []uint16{srpPort}}}}}, "e2e-threeways")
	x := &threeWays{served: s}
	addr := serveSRP(t, s, srpPort)
	dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(32<<20)
	must(t, pool.OnSlab(dev))
	t.Cleanup(func() {
		if err := errors.Join(dev.Close(), pool.Close()); err != nil {
			t.Error(err)
		}
	})
	x.dial = func(flags byte) *srpinit.Channel {
		t.Helper()
		req := srpinit.Request(srpHost, wire.PortID(srp.TargetPort(iqn, srpPort)))
		req.Flags |= flags
		c, err := srpinit.Dial(t.Context(), dev, pool, addr, req)
		must(t, err)
		t.Cleanup(c.End)
		return c
	}
	volume := func(scheme string, port, group uint16, key uint64) *way {
		v := open(t, host(t, block.Options{Name: iqn + "-" + scheme}, iwarp.Options{}), url(scheme, s.Portal("127.0.0.1", port)))
		return &way{t, scheme, port, group, 5, key, overVolume(t, v)}
	}
	x.iser, x.tcp = volume("iser", iserPort, iserGroup, 0x1111), volume("iscsi", tcpPort, tcpGroup, 0x2222)
	x.first, x.second = x.dial(0), x.dial(wire.MultiMulti)
	x.srp = &way{t, "srp", srpPort, srpGroup, 4, 0x3333, overChannel(t, x.first)}
	x.srp2 = &way{t, "srp's second channel", srpPort, srpGroup, 4, 0x3333, overChannel(t, x.second)}
	x.all = []*way{x.iser, x.tcp, x.srp}
	for _, w := range x.all {
		w.ready()
	}
	x.srp2.quiet() // the first channel has taken what there was for the nexus
	return x
}

// Each transport's port names itself and its group, and shows the states of all groups; what one host writes the others read. A port in standby keeps its own
// hosts from the volume and no others, and a state that one host sets is told to the hosts on the other transports.
func TestPortGroupsOfThreeTransports(t *testing.T) {
	x := newThreeWays(t)
	states := func(want map[uint16]scsi.AccessState) {
		t.Helper()
		for _, w := range x.all {
			got, ports := w.groups()
			if !maps.Equal(got, want) || !slices.Equal(ports[w.group], []uint16{w.port}) || len(ports) != 3 {
				t.Errorf("over %s the groups are %v with ports %v, want %v", w.name, got, ports, want)
			}
		}
	}
	for i, w := range x.all {
		if port, group, proto := w.place(); port != w.port || group != w.group || proto != w.proto {
			t.Errorf("over %s the port is %d of group %d, protocol %d", w.name, port, group, proto)
		}
		b := pattern(512, int64(i))
		w.write(i, b)
		for _, other := range x.all {
			if !bytes.Equal(other.read(i), b) {
				t.Errorf("what %s wrote is not what %s reads", w.name, other.name)
			}
		}
	}
	states(map[uint16]scsi.AccessState{iserGroup: scsi.ActiveOptimized, tcpGroup: scsi.ActiveNonOptimized, srpGroup: scsi.ActiveOptimized})

	must(t, x.SCSI.SetPortGroup(srpGroup, scsi.Standby))
	if a := x.srp2.do(testUnitReady, nil, 0); a.key != 6 || a.asc != 0x2A06 {
		t.Errorf("told %v", a)
	}
	for _, c := range []struct {
		cdb, out []byte
		in       int
	}{{testUnitReady, nil, 0}, {block10(0x28, 0), nil, 512}, {block10(0x2A, 0), pattern(512, 99), 0}} {
		if a := x.srp.do(c.cdb, c.out, c.in); a.key != 2 || a.asc != 0x040B { // the other channel has taken the unit attention of the nexus
			t.Errorf("% X in standby: %v", c.cdb, a)
		}
	}
	x.iser.ready()
	x.tcp.ready()
	for _, w := range []*way{x.iser, x.tcp} {
		if !bytes.Equal(w.read(0), pattern(512, 0)) {
			t.Errorf("%s reads other bytes", w.name)
		}
	}
	states(map[uint16]scsi.AccessState{iserGroup: scsi.ActiveOptimized, tcpGroup: scsi.ActiveNonOptimized, srpGroup: scsi.Standby})

	// SET TARGET PORT GROUPS by the host on TCP.
	x.tcp.good([]byte{0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0}, []byte{0, 0, 0, 0, byte(scsi.ActiveOptimized), 0, 0, srpGroup, byte(scsi.ActiveNonOptimized), 0, 0, iserGroup}, 0)
	x.srp.told(0x2A06)
	x.iser.ready()
	states(map[uint16]scsi.AccessState{iserGroup: scsi.ActiveNonOptimized, tcpGroup: scsi.ActiveNonOptimized, srpGroup: scsi.ActiveOptimized})
	x.srp.write(0, pattern(512, 100))
	if !bytes.Equal(x.iser.read(0), pattern(512, 100)) {
		t.Error("iser reads other bytes than srp wrote")
	}
}

const writeExclusive = 1

// Registrations and a reservation of hosts on three transports are one table: each sees all of it, with the others' names in the form of their protocols; each
// is kept out by the others and can preempt them; who is preempted is told so, once.
func TestReservationsOverThreeTransports(t *testing.T) {
	x := newThreeWays(t)
	held := func(by *way) {
		t.Helper()
		for _, w := range x.all {
			if key, kind := w.holder(); key != by.key || kind != writeExclusive {
				t.Errorf("over %s key %X holds a reservation of type %d, want that of %s", w.name, key, kind, by.name)
			}
			w.read(0)
			if w != by {
				w.refused(conflict, block10(0x2A, 0), pattern(512, 66))
			}
		}
		b := pattern(512, int64(by.key))
		by.write(0, b)
		for _, w := range x.all {
			if !bytes.Equal(w.read(0), b) {
				t.Errorf("%s does not read what %s wrote", w.name, by.name)
			}
		}
	}
	registered := func(want ...*way) {
		t.Helper()
		var keys []uint64
		for _, w := range want {
			keys = append(keys, w.key)
		}
		slices.Sort(keys)
		for _, w := range x.all {
			if got := w.keys(); !slices.Equal(got, keys) {
				t.Errorf("over %s the keys are %X, want %X", w.name, got, keys)
			}
		}
	}
	for _, w := range x.all {
		if a := w.reserve(1, writeExclusive, w.key, 0); a.status != conflict {
			t.Errorf("%s reserves without a registration: %v", w.name, a)
		}
		w.mustReserve(0, 0, 0, w.key) // REGISTER
	}
	registered(x.all...)
	x.srp2.mustReserve(1, writeExclusive, x.srp.key, 0) // RESERVE, over the other channel: the registration is the nexus's
	held(x.srp)
	x.srp2.write(1, pattern(512, 1))

	// READ FULL STATUS through each port.
	var first map[uint64]registrant
	for _, w := range x.all {
		m := w.status()
		for _, o := range x.all {
			r := m[o.key]
			client := (srpHost).Name()
			if o != x.srp {
				client = iqn + "-" + o.name + ",i,0x"
			}
			if r.port != o.port || r.holds != (o == x.srp) || r.id == "" || r.id[0]&0x0F != o.proto || !strings.HasPrefix(r.client, client) {
				t.Errorf("over %s, of %s: %+v", w.name, o.name, r)
			}
		}
		if first == nil {
			first = m
		}
		if !maps.Equal(m, first) || len(m) != 3 {
			t.Errorf("over %s: %+v, over %s: %+v", w.name, m, x.all[0].name, first)
		}
	}

	// iSER preempts SRP: both of its channels are out, and one of them is told.
	x.iser.mustReserve(4, writeExclusive, x.iser.key, x.srp.key)
	x.srp2.told(0x2A05)
	x.srp.quiet()
	x.tcp.quiet()
	registered(x.iser, x.tcp)
	held(x.iser)
	x.srp2.refused(conflict, block10(0x2A, 0), pattern(512, 67))

	// SRP preempts iSER, and aborts.
	x.srp.mustReserve(0, 0, 0, x.srp.key)
	x.srp.mustReserve(5, writeExclusive, x.srp.key, x.iser.key)
	x.iser.told(0x2A05)
	x.tcp.quiet()
	registered(x.srp, x.tcp)
	held(x.srp)

	// The registration is of the initiator port, and outlives its session.
	x.first.End()
	x.second.End()
	x.tcp.refused(conflict, block10(0x2A, 0), pattern(512, 68))
	x.srp.do = overChannel(t, x.dial(0))
	x.srp.ready()
	registered(x.srp, x.tcp)
	held(x.srp)

	// A reset by SRP is told to all, and keeps the reservation.
	reset, err := x.dial(wire.MultiMulti).Manage(t.Context(), wire.LUNReset, 0, 0)
	must(t, err)
	if r := reset.Wait(); r.Err != nil || r.Response() != wire.FunctionComplete {
		t.Fatalf("%+v", r)
	}
	x.srp.told(0x2903)
	for _, w := range x.all {
		w.ready()
	}
	held(x.srp)

	// TCP preempts SRP, and then clears all.
	x.tcp.mustReserve(4, writeExclusive, x.tcp.key, x.srp.key)
	x.srp.told(0x2A05)
	registered(x.tcp)
	held(x.tcp)
	x.srp.mustReserve(6, 0, 0, x.srp.key) // REGISTER AND IGNORE EXISTING KEY
	x.tcp.mustReserve(3, 0, x.tcp.key, 0)
	x.srp.told(0x2A03)
	registered()
	for i, w := range x.all {
		w.write(i, pattern(512, int64(70+i)))
	}
}
