package operator

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/goccy/go-yaml"

	"github.com/sluice-storage/sluice/target/admin"
)

// The two hosts, and the LUNs that are looked at.
var (
	hosts = []string{"iqn.2026-11.org.example:host-a", "iqn.2026-11.org.example:host-b"}
	luns  = []int{0, 1, 2}
)

// second is the portal that the interface opens and closes.
func (s *stand) second() string { return s.ip + ":3261" }

func (s *stand) url(t *target, name, host string, lun int) string {
	return s.urlAs(t, t.user(host), name, lun)
}

func (s *stand) urlAs(t *target, user, name string, lun int) string {
	with := ""
	if user != "" {
		with = user + "%" + t.secrets[user] + "@"
	}
	return fmt.Sprintf("iscsi://%s%s/%s/%d", with, s.portal(), name, lun)
}

func sorted[T cmp.Ordered](l iter.Seq[T]) []T { return slices.Sorted(l) }

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// check compares everything with the model: what the interface says, the files, and, with deep, what libiscsi's tools see.
func (s *stand) check(m *model, deep bool) error {
	if err := errors.Join(s.checkLists(m), s.checkFiles(m)); err != nil || !deep {
		return err
	}
	return s.checkSeen(m)
}

// checkLists holds what the interface says, lists and configuration, against the model.
func (s *stand) checkLists(m *model) error {
	got, err := s.lists()
	if err != nil {
		return err
	}
	if want := m.lists(s); !slices.Equal(got, want) {
		return fmt.Errorf("the daemon has\n  %s\nand should have\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return nil
}

func (s *stand) lists() ([]string, error) {
	var vs []admin.Volume
	var ts []admin.Target
	var es []admin.Export
	var ps []admin.Portal
	var text string
	var conf struct {
		Targets []struct {
			Name       string
			Initiators []struct {
				Name string
				LUNs []int `yaml:"luns"`
			}
			Auth *struct {
				Mutual string `yaml:"mutual_user"`
			}
		}
	}
	err := errors.Join(s.get("/v1/volumes", &vs), s.get("/v1/targets", &ts), s.get("/v1/exports", &es), s.get("/v1/portals", &ps), s.get("/v1/config", &text))
	if err == nil {
		err = yaml.Unmarshal([]byte(text), &conf)
	}
	if err != nil {
		return nil, err
	}
	var l []string
	for _, v := range vs {
		l = append(l, fmt.Sprintf("volume %s %d %d managed %v read only %v", v.Name, v.Size, v.Block, v.Managed, v.ReadOnly))
		if v.Problem != "" {
			l = append(l, v.Name+": "+v.Problem)
		}
	}
	for _, t := range ts {
		slices.Sort(t.Initiators)
		l = append(l, fmt.Sprintf("target %s managed %v names %v secrets %v", t.Name, t.Managed, t.Initiators, t.CHAP))
		if t.Problem != "" {
			l = append(l, t.Name+": "+t.Problem)
		}
		for _, n := range t.LUNs {
			l = append(l, fmt.Sprintf("target %s LUN %d is %s", t.Name, n.LUN, n.Volume))
		}
		var gs []admin.PortGroup
		if err := s.get("/v1/targets/"+t.Name+"/groups", &gs); err != nil {
			return nil, err
		}
		for _, g := range gs {
			l = append(l, fmt.Sprintf("target %s group %d %s", t.Name, g.Group, g.State))
		}
	}
	for _, t := range conf.Targets {
		for _, i := range t.Initiators {
			if i.LUNs != nil && len(i.LUNs) == 0 {
				i.LUNs = nil
			}
			l = append(l, fmt.Sprintf("target %s lets %s see %v", t.Name, i.Name, i.LUNs))
		}
		if t.Auth != nil && t.Auth.Mutual != "" {
			l = append(l, "target "+t.Name+" proves itself as "+t.Auth.Mutual)
		}
	}
	for _, e := range es {
		l = append(l, "export "+e.Name)
	}
	for _, p := range ps {
		l = append(l, "portal "+p.Address)
	}
	slices.Sort(l)
	return l, nil
}

func (m *model) lists(s *stand) []string {
	l := []string{"portal " + s.portal()}
	if m.portal {
		l = append(l, "portal "+s.second())
	}
	for name, v := range m.volumes {
		l = append(l, fmt.Sprintf("volume %s %d %d managed %v read only %v", name, m.size(name), v.block, v.managed, v.readOnly))
	}
	for name, t := range m.targets {
		l = append(l, fmt.Sprintf("target %s managed %v names %v secrets %v", name, t.managed, sorted(keys(t.list)), len(t.secrets) > 0), fmt.Sprintf("target %s group 1 %s", name, t.state))
		for _, at := range []map[int]string{t.own, t.luns} {
			for n, v := range at {
				l = append(l, fmt.Sprintf("target %s LUN %d is %s", name, n, v))
			}
		}
		for i, sees := range t.list {
			l = append(l, fmt.Sprintf("target %s lets %s see %v", name, i, sees))
		}
		if t.mutual[0] != "" {
			l = append(l, "target "+name+" proves itself as "+t.mutual[0])
		}
	}
	for name := range m.exports {
		l = append(l, "export "+name)
	}
	slices.Sort(l)
	return l
}

func (s *stand) checkFiles(m *model) error {
	l, err := filepath.Glob(filepath.Join(s.dir, "*.img"))
	if err != nil {
		return err
	}
	for _, path := range l {
		want, known := m.files[filepath.Base(path)]
		if !known {
			return fmt.Errorf("%s should not be there", filepath.Base(path))
		}
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := equal(filepath.Base(path), got, want); err != nil {
			return err
		}
	}
	if len(l) != len(m.files) {
		return fmt.Errorf("there are files %v, and should be %v", l, slices.Sorted(keys(m.files)))
	}
	return nil
}

func equal(what string, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("%s has %d bytes, should have %d, and differs at %d", what, len(got), len(want), at)
}

// checkSeen asks as both hosts for each LUN of each target, there or not, and reads what is there.
func (s *stand) checkSeen(m *model) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	room := make(chan struct{}, 4)
	ask := func(f func() error) {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			if err := f(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	serials := map[string]string{}
	for name, t := range m.targets {
		for k, host := range hosts {
			for _, lun := range luns {
				v := t.sees(host, lun)
				if lun == luns[0] || t.letsIn(host) { // who is kept out is so at any LUN
					ask(func() error { return s.checkLUN(m, t, name, host, lun, v) })
				}
				if v == "" || v == m.away || !t.ready() || k == 1 && t.sees(hosts[0], lun) != "" {
					continue
				}
				ask(func() error { return s.checkBytes(m, t, name, host, lun, v) })
				ask(func() error {
					serial, err := s.serial(t, name, host, lun)
					mu.Lock()
					defer mu.Unlock()
					serials[v] = serial
					return err
				})
			}
		}
		s.checkSecrets(t, name, ask)
	}
	for _, host := range hosts {
		ask(func() error { return s.checkDiscovery(m, host) })
	}
	ask(func() error {
		c, err := net.Dial("tcp", s.second())
		if (err == nil) != m.portal {
			return fmt.Errorf("a second portal is open: %v (%w)", !m.portal, err)
		}
		if err == nil {
			return c.Close()
		}
		return nil
	})
	for _, e := range []string{"/first", "/second"} {
		ask(func() error {
			out, err := run(nil, "nfs-ls", fmt.Sprintf("nfs://%s%s?nfsport=3262&mountport=3262", s.ip, e))
			if (err == nil && strings.Contains(out, "marker")) != m.exports[e] {
				return fmt.Errorf("export %s: %s %w, should be served: %v", e, out, err, m.exports[e])
			}
			return nil
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return m.checkSerials(serials)
}

// What libiscsi prints of a LUN that is not there, is not ready or has no medium. The login before has succeeded.
const (
	noSuchLUN = "LOGICAL_UNIT_NOT_SUPPORTED"
	notReady  = "NOT READY"
	noMedium  = "failed to send readcapacity command"
)

// checkLUN has libiscsi ask for the capacity: v is what must be there, "" for nothing.
func (s *stand) checkLUN(m *model, t *target, name, host string, lun int, v string) error {
	out, err := run(nil, "iscsi-readcapacity16", "-i", host, "-s", s.url(t, name, host, lun))
	size, _ := strconv.Atoi(strings.TrimSpace(out))
	var f *failure
	where := fmt.Sprintf("LUN %d of %s", lun, name)
	switch {
	case err != nil && !errors.As(err, &f):
		return err
	case v == "" && err == nil:
		return fmt.Errorf("%s sees %s, of %d bytes, and should see nothing there", host, where, size)
	case v == "" && t.letsIn(host) != strings.Contains(f.says, noSuchLUN):
		return fmt.Errorf("%s can log in to %s: %v, and should: %v (%w)", host, name, !t.letsIn(host), t.letsIn(host), err)
	case v == "":
		return nil
	case v == m.away || !t.ready():
		if err == nil || !t.ready() && !strings.Contains(f.says, notReady) {
			return fmt.Errorf("%s asks %s, which is not ready, and is answered %d bytes, %w", host, where, size, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("%s should see volume %s as %s: %w", host, v, where, err)
	case size != m.size(v):
		return fmt.Errorf("%s sees %s with %d bytes; volume %s has %d", host, where, size, v, m.size(v))
	}
	return nil
}

// checkSecrets logs in with every secret, and with wrong ones, and has the target prove its own.
func (s *stand) checkSecrets(t *target, name string, ask func(func() error)) {
	host := hosts[0]
	login := func(what, url string, ok bool) {
		ask(func() error {
			_, err := run(nil, "iscsi-readcapacity16", "-i", host, "-s", url)
			var f *failure
			if in := err == nil || errors.As(err, &f) && (strings.Contains(f.says, noSuchLUN) || strings.Contains(f.says, notReady) || strings.Contains(f.says, noMedium)); in != ok {
				return fmt.Errorf("%s logs in to %s with %s: %v, and should: %v (%w)", host, name, what, in, ok, err)
			}
			return nil
		})
	}
	_, listed := t.list[host]
	listed = listed || len(t.list) == 0
	if len(t.secrets) > 0 {
		login("no secret", s.urlAs(t, "", name, 0), false)
	}
	for user := range t.secrets {
		bound := slices.Contains(t.names[user], host) || len(t.names[user]) == 0
		for other, l := range t.names {
			if other != user && slices.Contains(l, host) && !slices.Contains(t.names[user], host) {
				bound = false
			}
		}
		login("the secret of "+user, s.urlAs(t, user, name, 0), listed && bound)
	}
	if t.mutual[0] != "" && t.letsIn(host) {
		login("the target's proof", s.url(t, name, host, 0)+"?target_user="+t.mutual[0]+"&target_password="+t.mutual[1], true)
		login("a wrong proof of the target", s.url(t, name, host, 0)+"?target_user="+t.mutual[0]+"&target_password=nothing-like-it-at-all", false)
	}
}

// checkDiscovery has libiscsi list the targets of a host, at each portal.
func (s *stand) checkDiscovery(m *model, host string) error {
	out, err := run(nil, "iscsi-ls", "-i", host, "iscsi://"+s.portal())
	if err != nil {
		return err
	}
	var want []string
	for name, t := range m.targets {
		if _, listed := t.list[host]; len(t.list) > 0 && !listed {
			continue
		}
		want = append(want, fmt.Sprintf("Target:%s Portal:%s,1", name, s.portal()))
		if m.portal {
			want = append(want, fmt.Sprintf("Target:%s Portal:%s,1", name, s.second()))
		}
	}
	got := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s discovers %v, and should %v", host, got, want)
	}
	return nil
}

func (s *stand) checkBytes(m *model, t *target, name, host string, lun int, v string) error {
	got, err := s.sluice(nil, "read", s.url(t, name, host, lun), "--initiator", host)
	if err != nil {
		return err
	}
	return equal(fmt.Sprintf("LUN %d of %s, volume %s,", lun, name, v), []byte(got), m.files[m.volumes[v].file])
}

var serialLine = regexp.MustCompile(`Unit Serial Number:\s*\[?([^\]\n]*)`)

func (s *stand) serial(t *target, name, host string, lun int) (string, error) {
	out, err := run(nil, "iscsi-inq", "-i", host, "-e", "1", "-c", "128", s.url(t, name, host, lun))
	if err != nil {
		return "", err
	}
	f := serialLine.FindStringSubmatch(out)
	if f == nil || strings.TrimSpace(f[1]) == "" {
		return "", fmt.Errorf("iscsi-inq prints no serial number: %s", out)
	}
	return f[1], nil
}

// checkSerials holds that a volume keeps its identity and that no other has it, nor one that was there before.
func (m *model) checkSerials(seen map[string]string) error {
	for name, serial := range seen {
		v := m.volumes[name]
		if v.serial == "" {
			v.serial = serial
		}
		if v.serial != serial {
			return fmt.Errorf("volume %s had serial number %s and has %s", name, v.serial, serial)
		}
	}
	of := map[string]string{}
	for name, v := range m.volumes {
		if v.serial == "" {
			continue
		}
		if other := of[v.serial]; other != "" {
			return fmt.Errorf("volumes %s and %s have one serial number, %s", name, other, v.serial)
		}
		of[v.serial] = name
	}
	return nil
}
