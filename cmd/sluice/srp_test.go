package main

import (
	"context"
	"testing"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// overSRP logs in to the daemon's port of a group.
func overSRP(t *testing.T, address string, group uint16) *srpinit.Channel {
	t.Helper()
	dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(32<<20)
	if err := pool.OnSlab(dev); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := srpinit.Dial(context.Background(), dev, pool, address, srpinit.Request(wire.PortID{15: 7}, wire.PortID(srp.TargetPort(testTarget, group))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.End)
	return c
}

func (o *operator) srp() {
	t := o.t
	o.refuses(ui.CodeRefused, "there is no target nowhere", "", "target srp nowhere")
	id := wire.PortID(srp.TargetPort(testTarget, 9))
	o.says("target srp "+testTarget, "id_ext=0000000000000009,ioc_guid="+id.GUID()+",dest=127.0.0.1:")
	var address string
	for _, g := range reads[[]admin.Target](o, o.sock, "target list") {
		if g.Name == testTarget && len(g.SRP) == 1 && g.SRP[0].Group == 9 {
			address = g.SRP[0].Address
		}
	}
	c := overSRP(t, address, 9)
	if r := c.Do(context.Background(), srpinit.Command{CDB: []byte{0}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	s := o.session("SRP")
	if s.Initiator != (wire.PortID{15: 7}).Name() || s.Target != testTarget || s.Channels != 1 || s.Path == nil || s.Path.Provider != "iwarp" {
		t.Errorf("%+v", s)
	}
	o.refuses(ui.CodeRefused, "no session srp77", "", "session close srp77 --yes")
	o.refuses(ui.CodeUsage, "session's id is a number", "", "session close srpx --yes")
	o.says("session close "+s.ID+" --yes", "ended")
	<-c.Done()
	if e := c.Events(); len(e) != 1 || e[0].Op != wire.OpTLogout {
		t.Errorf("the initiator was told %+v", e)
	}
}
