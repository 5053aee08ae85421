package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluice-storage/sluice/cmd/sluice/admincmd"
	"github.com/sluice-storage/sluice/cmd/sluice/configcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Every administrative command does what it says to a daemon that serves: as a table and as JSON, tried first, asked about where it
// destroys, refused with a sentence, over the socket and over TLS. One daemon takes it all.
func TestEveryAdminCommandOnALiveDaemon(t *testing.T) {
	o := newOperator(t)
	o.says("status", "state", "serving", o.conf)
	if s := reads[struct{ Daemon admin.Info }](o, o.sock, "status"); s.Daemon.State != "serving" || s.Daemon.PID != os.Getpid() {
		t.Errorf("%+v", s)
	}
	o.volumes()
	o.targets()
	o.groups()
	o.addresses()
	o.sessions()
	o.srp()
	o.configuration()
	o.elsewhere()
	o.says("drain --yes", "ends when what runs has finished")
	if err := o.daemon.Wait(); err != nil {
		t.Error(err)
	}
	o.refuses(ui.CodeNoPeer, "is sluiced running", "", "status")
	// Nothing was left out.
	live := map[string]bool{}
	for _, c := range append(admincmd.Commands(), configcmd.Command()) {
		leaves("sluice", c, live)
	}
	for path := range live {
		if !o.ran[path] {
			t.Errorf("nobody tried %s", path)
		}
	}
}

func (o *operator) volumes() {
	t := o.t
	o.says("volume list", "NAME", "a ", "8 MiB", testTarget+"/0")
	o.says("volume create c 1MiB --dry-run", "would: volume c of 1MiB created")
	if o.volume("c") != nil {
		t.Error("a dry run made a volume")
	}
	o.says("volume create c 1MiB --block 4096", "volume c of 1MiB created in "+filepath.Join(o.dir, "c.img"))
	if v := o.volume("c"); v == nil || v.Size != 1<<20 || v.Block != 4096 || !v.Managed || v.LUN != nil {
		t.Errorf("%+v", v)
	}
	o.refuses(ui.CodeRefused, "already", "", "volume create c 1MiB")
	o.refuses(ui.CodeUsage, "a size is missing", "", "volume create d")
	o.refuses(ui.CodeUsage, "is no size", "", "volume create d much")
	o.says("volume resize c 2MiB --dry-run", "would: volume c grown from 1MiB to 2MiB")
	o.says("volume resize c 2MiB", "grown from 1MiB to 2MiB")
	o.refuses(ui.CodeRefused, "only grow", "", "volume resize c 1MiB")
	o.refuses(ui.CodeRefused, "no volume z", "", "volume resize z 1MiB")
	if v := o.volume("c"); v.Size != 2<<20 {
		t.Errorf("%+v", v)
	}
	// Whether blocks can be shared is the file system's; where not, a slow copy is not slipped in and nothing is left behind.
	o.says("volume snapshot c monday --dry-run", "would: volume monday")
	for name, line := range map[string]string{"monday": "volume snapshot c monday", "copy": "volume create copy --clone c"} {
		switch out, err := o.run(o.sock, "", strings.Fields(line)...); {
		case err == nil:
			if v := o.volume(name); v == nil || v.Size != 2<<20 || v.ReadOnly != (name == "monday") {
				t.Errorf("%s: %+v", line, v)
			}
			o.says("volume delete "+name+" --data --yes", name+" forgotten")
		default:
			o.wrong(ui.CodeRefused, "cannot share blocks", line, out, err)
		}
		if _, err := os.Stat(filepath.Join(o.dir, name+".img")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s left its file: %v", line, err)
		}
	}
	o.refuses(ui.CodeRefused, "is defined in", "", "volume delete a")
	o.refuses(ui.CodeRefused, "not confirmed", "no\n", "volume delete c --data")
	o.says("volume delete c --data --dry-run", "would: volume c forgotten", "would: "+filepath.Join(o.dir, "c.img")+" deleted")
	o.completes("volume delete", "a\nc\n")
}

func (o *operator) targets() {
	t, tn, who := o.t, "iqn.2026-11.io.sluice:made", "iqn.2026-11.org.example:"
	o.says("target create "+tn+" --dry-run", "would: target "+tn+" created")
	o.says("target create "+tn+" --alias made --initiator "+who+"web", "created")
	o.refuses(ui.CodeRefused, "already", "", "target create "+tn)
	o.refuses(ui.CodeUsage, "is not an iSCSI name", "", "target create not-a-name")
	o.says("target map "+tn+" 3 c --dry-run", "would: volume c is LUN 3")
	o.says("target map "+tn+" 3 c", "volume c is LUN 3")
	o.refuses(ui.CodeRefused, "is taken", "", "target map "+tn+" 3 a")
	o.refuses(ui.CodeUsage, "is no LUN", "", "target map "+tn+" x c")
	o.refuses(ui.CodeUsage, "nowhere", "", "target map "+tn+" 4 nowhere")
	o.refuses(ui.CodeRefused, "unmap it first", "yes\n", "volume delete c --data")
	o.says("target allow "+tn+" "+who+"db --lun 3 --dry-run", "would: "+who+"db may log in")
	o.says("target allow "+tn+" "+who+"db --lun 3", who+"db may log in")
	o.refuses(ui.CodeUsage, "16383", "", "target allow "+tn+" "+who+"x --lun 20000")
	o.says("target deny "+tn+" "+who+"web --dry-run", "would: ")
	o.refuses(ui.CodeRefused, "not confirmed", "\n", "target deny "+tn+" "+who+"web")
	o.saysOf("yes\n", "target deny "+tn+" "+who+"web", "may not log in")
	o.refuses(ui.CodeRefused, "lets everybody in", "", "target deny "+tn+" "+who+"db --yes")
	o.refuses(ui.CodeUsage, "no secret", "", "target secret "+tn+" alice")
	o.refuses(ui.CodeUsage, "12 characters", "short\n", "target secret "+tn+" alice")
	o.saysOf("a-long-enough-secret\n", "target secret "+tn+" alice", "secret of alice set")
	o.saysOf("another-long-secret\n", "target secret "+tn+" bob", "secret of bob set")
	o.saysOf("the-target-s-own-secret\n", "target secret "+tn+" us --mutual --dry-run", "would: ")
	o.saysOf("the-target-s-own-secret\n", "target secret "+tn+" us --mutual", "secret of us set")
	o.refuses(ui.CodeRefused, "it has auth, and SRP has no authentication", "", "target srp "+tn)
	o.says("target secret "+tn+" bob --remove --yes", "forgotten")
	o.refuses(ui.CodeRefused, "is the last", "", "target secret "+tn+" alice --remove --yes")
	o.says("target list", tn, "c ", "true")
	for _, g := range reads[[]admin.Target](o, o.sock, "target list") {
		if g.Name == tn && (!g.CHAP || len(g.Initiators) != 1 || g.Initiators[0] != who+"db" || len(g.LUNs) != 1 || g.LUNs[0] != (admin.LUN{LUN: 3, Volume: "c"}) || !g.Managed) {
			t.Errorf("%+v", g)
		}
	}
	o.says("target unmap "+tn+" 3 --dry-run", "would: LUN 3")
	o.says("target unmap "+tn+" 3 --yes", "unmapped")
	o.refuses(ui.CodeRefused, "is defined in", "", "target delete "+testTarget+" --yes")
	o.refuses(ui.CodeRefused, "not confirmed", "never\n", "target delete "+tn)
	o.says("target delete "+tn+" --dry-run", "would: target "+tn+" removed")
	o.says("target delete "+tn+" --yes", "removed")
	o.saysOf("yes\n", "volume delete c --data", "c.img deleted")
	if _, err := os.Stat(filepath.Join(o.dir, "c.img")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a deleted volume: %v", err)
	}
}

func (o *operator) groups() {
	t := o.t
	o.says("target groups "+testTarget, "GROUP", "active/non-optimized", "configuration")
	o.says("target set-group "+testTarget+" 2 standby --dry-run", "would: port group 2 of "+testTarget+" from active/non-optimized to standby")
	for _, state := range []string{"standby", "unavailable", "transitioning", "active/optimized"} {
		o.says("target set-group "+testTarget+" 2 "+state, "to "+state)
		g := reads[[]admin.PortGroup](o, o.sock, "target groups "+testTarget)
		if len(g) != 2 || g[0].State != "active/optimized" || !g[0].Preferred || g[0].SetBy != "configuration" || g[1].State != state || g[1].SetBy != "operator" || g[1].Portals[0] != 2 {
			t.Errorf("%+v", g)
		}
	}
	o.refuses(ui.CodeUsage, "is no access state", "", "target set-group "+testTarget+" 2 offline")
	o.refuses(ui.CodeRefused, "has no port group 9", "", "target set-group "+testTarget+" 9 standby")
	o.refuses(ui.CodeUsage, "is no port group", "", "target set-group "+testTarget+" two standby")
	o.refuses(ui.CodeRefused, "no target", "", "target groups iqn.2026-11.org.example:nowhere")
	o.completes("target set-group", testTarget+"\n")
	o.completes("target set-group "+testTarget, "1\n2\n")
	o.completes("target set-group "+testTarget+" 2", "transitioning\n")
}

func (o *operator) addresses() {
	t := o.t
	o.says("portals", "ADDRESS", o.portal)
	o.says("portals add 127.0.0.2:0 --group 2 --dry-run", "would: portal 127.0.0.2:0 opened")
	o.says("portals add 127.0.0.2:0 --group 2", "portal 127.0.0.2:0 opened")
	if p := reads[[]admin.Portal](o, o.sock, "portals"); len(p) != 3 || !strings.HasPrefix(p[1].Address, "127.0.0.2:") || p[1].Group != 2 {
		t.Errorf("%+v", p)
	}
	o.refuses(ui.CodeUsage, "is not host:port", "", "portals add here")
	o.refuses(ui.CodeUsage, "is not host:port", "", "portals add 127.0.0.2:")
	o.says("portals remove 127.0.0.2:0 --dry-run", "would: ")
	o.says("portals remove 127.0.0.2:0 --yes", "closed")
	o.refuses(ui.CodeRefused, "opened no portal", "", "portals remove 127.0.0.2:0 --yes")

	served := t.TempDir()
	if err := os.WriteFile(filepath.Join(served, "f"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	o.says("exports add /data "+served+" --dry-run", "would: export /data")
	o.says("exports add /data "+served+" --client 127.0.0.1 --any-port --squash none --anon-uid 4000", "export /data of "+served+" added")
	o.refuses(ui.CodeUsage, "--client", "", "exports add /all "+served+" --squash all")
	o.refuses(ui.CodeRefused, "already", "", "exports add /data "+served)
	o.refuses(ui.CodeRefused, "no directory", "", "exports add /other "+served+"/f")
	o.says("exports", "/data", served)
	if e := reads[[]admin.Export](o, o.sock, "exports"); len(e) != 1 || e[0].Path != served || !e[0].Managed {
		t.Errorf("%+v", e)
	}
	o.counted(served)
	o.refuses(ui.CodeRefused, "not confirmed", "no\n", "exports remove /data")
	o.says("exports remove /data --dry-run", "would: ")
	o.says("exports remove /data --yes", "its files stay")
	if e := reads[[]admin.Export](o, o.sock, "exports"); len(e) != 0 {
		t.Errorf("%+v", e)
	}
}

// counted reads files from the new export, adds another one beside it, and finds all of it in the metrics.
func (o *operator) counted(served string) {
	t := o.t
	_, port, err := net.SplitHostPort(o.nfs)
	if err != nil {
		t.Fatal(err)
	}
	url, query := "nfs://127.0.0.1/data", "?nfsport="+port+"&mountport="+port
	if out := must(t, nil, "cat", url+"/f"+query); out != "content" {
		t.Errorf("%q", out)
	}
	if _, _, err := sluice(t, nil, "cat", url+"/missing"+query); err == nil {
		t.Error("a file that is not there was read")
	}
	o.says("exports add /more "+served, "added")
	var text, missing string
	counted := []string{`sluice_export_bytes_total{direction="read",export="/data"} 7`, `sluice_export_bytes_total{direction="read",export="/more"} 0`,
		`sluice_export_errors_total{export="/data",status="NFS3ERR_NOENT"} `, `sluice_export_operation_duration_seconds_count{export="/data",operation="read"} `,
		`sluice_export_operation_duration_seconds_bucket{export="/data",operation="lookup",le="+Inf"} `, `sluice_rpc_connections_total{transport="tcp"} `, "sluice_rpc_calls_total ",
		`sluice_rpc_workers{state="busy"} 0`, `sluice_rpc_refusals_total{reason="credentials"} 0`, "sluice_rpc_credits 0", "sluice_rpc_calls_in_progress 0", "sluice_locks_held 0",
		`sluice_port_group_state{group="2",state="active/optimized",target="` + testTarget + `"} 1`, `sluice_port_group_state{group="2",state="standby",target="` + testTarget + `"} 0`}
	if !soon(func() bool { // a call ends, and is counted, behind its answer
		text, missing = o.scrape(), ""
		for _, want := range counted {
			if !strings.Contains(text, "\n"+want) {
				missing = want
			}
		}
		return missing == ""
	}) {
		t.Errorf("%s is not in\n%s", missing, text)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sluice_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	o.says("exports remove /more --yes", "removed")
}

func (o *operator) sessions() {
	t := o.t
	pool, dev := mem.NewPool(64<<20), iwarp.New(iwarp.Options{})
	ini, err := block.New(block.Options{Device: dev, Memory: pool})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(ini.Close(), dev.Close(), pool.Close()); err != nil {
			t.Error(err)
		}
	}()
	v, err := ini.Open(t.Context(), "iser://"+o.portal+"/"+testTarget+"/0")
	if err != nil {
		t.Fatal(err)
	}
	o.says("session list", "ID", testTarget, "iSER")
	s := o.session("iSER")
	if s.Target != testTarget || s.Commands == 0 {
		t.Fatalf("%+v", s)
	}
	o.says("session trace "+s.ID, "session", "INQUIRY")
	if tr := reads[admin.Trace](o, o.sock, "session trace "+s.ID); tr.Session.ID != s.ID || tr.Ended != "" || len(tr.Events) == 0 || len(tr.Commands) == 0 {
		t.Errorf("%+v", tr)
	}
	// What "top" shows is what the routes count.
	type rates struct {
		Volumes  []struct{ Name string }
		Sessions []struct{ ID string }
	}
	if r := reads[rates](o, o.sock, "top --once --interval 100ms"); len(r.Volumes) != 1 || len(r.Sessions) != 1 || r.Sessions[0].ID != s.ID {
		t.Errorf("%+v", r)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	// A session of discovery or of a volume whose initiator does not close it is ended from here, and the trace says so.
	if v, err = ini.Open(t.Context(), "iscsi://"+o.portal+"/"+testTarget+"/0"); err != nil {
		t.Fatal(err)
	}
	s = o.session("iSCSI")
	o.says("session close --yes "+s.ID, "session "+s.ID+" ended")
	var tr admin.Trace
	if !soon(func() bool { tr = reads[admin.Trace](o, o.sock, "session trace "+s.ID); return tr.Ended != "" }) { // it ends behind the answer
		t.Errorf("%+v", tr)
	}
	o.refuses(ui.CodeRefused, "no session", "", "session close 60000 --yes")
	o.refuses(ui.CodeUsage, "is a number", "", "session close first")
	o.refuses(ui.CodeRefused, "no session", "", "session trace 60000")
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// session is the one that is listed. One that has ended may be listed for a moment behind the answer to its logout.
func (o *operator) session(transport string) (s admin.Session) {
	o.t.Helper()
	var l []admin.Session
	if !soon(func() bool {
		l = reads[[]admin.Session](o, o.sock, "session list")
		return len(l) == 1 && l[0].Transport == transport
	}) {
		o.t.Fatalf("no session over %s alone: %+v", transport, l)
	}
	return l[0]
}

func (o *operator) configuration() {
	t := o.t
	o.says("volume create kept 1MiB", "created")
	out := o.says("config show", "# what sluiced, process", "name: kept", "state: active/non-optimized", "listen: 127.0.0.1:0")
	if strings.Contains(out, "secret-") || strings.Contains(out, "-secret\n") {
		t.Errorf("a secret is shown:\n%s", out)
	}
	// What is shown is a configuration: it can be checked, and it is what runs.
	file := filepath.Join(t.TempDir(), "shown.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := o.run(nil, "", "config", "check", file); err != nil || !strings.Contains(out, "2 volumes, 1 targets") {
		t.Errorf("%v %s", err, out)
	}
	if s := reads[map[string]any](o, nil, "config schema"); s["title"] != "sluiced configuration" {
		t.Errorf("%v", s["title"])
	}
	type shown struct {
		Volumes []struct {
			Name string
			Size string
		}
	}
	if c := reads[shown](o, o.sock, "config show --live"); len(c.Volumes) != 2 || c.Volumes[1].Name != "kept" || c.Volumes[1].Size != "1MiB" {
		t.Errorf("%+v", c)
	}
	if c := reads[shown](o, nil, "config show "+o.conf); len(c.Volumes) != 1 {
		t.Errorf("the file alone: %+v", c)
	}
	out, err := o.run(nil, "", "config", "show", "--live", o.conf)
	o.wrong(ui.CodeUsage, "--live shows", "config show --live FILE", out, err)
	o.says("config diff", "nothing has changed")
	o.configure(", {name: more, size: 1MiB}")
	o.says("config diff", "volume more added")
	if d := reads[admin.Done](o, o.sock, "config diff"); !d.DryRun || len(d.Changes) != 1 {
		t.Errorf("%+v", d)
	}
	o.says("reload --dry-run", "would: volume more added")
	if o.volume("more") != nil {
		t.Error("a dry run loaded the file")
	}
	o.says("config reload", "volume more added")
	if o.volume("more") == nil || o.volume("kept") == nil {
		t.Error("a volume is missing after the reload")
	}
	o.configure(", {name: more, size: 1}")
	o.refuses(ui.CodeRefused, "more", "", "reload")
	o.configure("")
	o.says("reload", "volume more removed")
	o.says("volume delete kept", "forgotten")
	_, errs, err := sluice(t, nil, "config", "show", "--live", "--socket", filepath.Join(o.dir, "nobody.sock"))
	o.wrong(ui.CodeNoPeer, "is sluiced running", "config show --live", errs, err)
}

// elsewhere is the same from another machine, with a certificate.
func (o *operator) elsewhere() {
	t := o.t
	for line, want := range map[string]string{
		"status": "serving", "volume list": "8 MiB", "target list": testTarget, "target groups " + testTarget: "active/optimized", "session list": "INITIATOR", "portals": o.portal,
		"exports": "DIRECTORY", "top --once --interval 100ms": "VOLUME", "config show": "what sluiced", "config diff": "nothing has changed", "volume create far 1MiB": "created", "volume delete far --data --yes": "forgotten",
	} {
		if strings.HasPrefix(line, "volume delete") {
			continue // below, after its creation
		}
		out, err := o.run(o.tls, "", strings.Fields(line)...)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("sluice %s over TLS: %v\n%s", line, err, out)
		}
	}
	if v := reads[[]admin.Volume](o, o.tls, "volume list"); len(v) != 2 || v[1].Name != "far" {
		t.Errorf("%+v", v)
	}
	if out, err := o.run(o.tls, "", strings.Fields("volume delete far --data --yes")...); err != nil || !strings.Contains(out, "deleted") {
		t.Errorf("%v %s", err, out)
	}
	other, key := certificate(t, t.TempDir())
	flags := func(cert, key, ca string) []string {
		return []string{"--admin", o.tls[1], "--admin-cert", cert, "--admin-key", key, "--admin-ca", ca}
	}
	for what, c := range map[string]struct {
		flags []string
		code  int
		want  string
	}{
		"without a certificate":               {[]string{"--admin", o.tls[1]}, ui.CodeUsage, "--admin-cert"},
		"with a stranger's certificate":       {flags(other, key, o.tls[7]), ui.CodeNoPeer, ""},
		"to a daemon that nobody vouches for": {flags(o.tls[3], o.tls[5], other), ui.CodeNoPeer, "certificate"},
		"in plain text":                       {[]string{"--admin", "http://127.0.0.1:1"}, ui.CodeUsage, "https://"},
	} {
		out, err := o.run(c.flags, "", "status")
		o.wrong(c.code, c.want, "status "+what, out, err)
	}
}

// Without a daemon "config show" is of the embedded default and says so, never silently.
func TestConfigShowWithoutADaemonSaysSo(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if _, err := os.Stat("/var/lib/sluice/admin.sock"); err == nil {
		t.Log("a daemon of this machine answers instead")
		return
	}
	out, errs, err := sluice(t, nil, "config", "show")
	if err != nil || !strings.Contains(errs, "This is the embedded default") || !strings.Contains(out, "portals:") {
		t.Errorf("%v\n%s\n%s", err, errs, out)
	}
}
