package operator

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// The two hosts, and the LUNs that are looked at.
var (
	hosts = []string{"iqn.2026-11.org.example:host-a", "iqn.2026-11.org.example:host-b"}
	luns  = []int{0, 1, 2}
)

func (s *stand) url(t *target, name string, lun int) string {
	with := ""
	if users := slices.Sorted(keys(t.secrets)); len(users) > 0 {
		with = users[0] + "%" + t.secrets[users[0]] + "@"
	}
	return fmt.Sprintf("iscsi://%s%s/%s/%d", with, s.portal(), name, lun)
}

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

func (s *stand) checkLists(m *model) error {
	var vs []struct {
		Name      string
		Size      int64
		ReadOnly  bool `json:"read_only"`
		Managed   bool
		Target    string
		LUN       *int
		NotServed string `json:"problem"`
	}
	var ts []struct {
		Name       string
		LUNs       []struct{ LUN int }
		Initiators []string
		CHAP       bool `json:"chap"`
	}
	var es []struct{ Name string }
	if err := errors.Join(s.reads(&vs, "volume", "list"), s.reads(&ts, "target", "list"), s.reads(&es, "exports")); err != nil {
		return err
	}
	var got, want []string
	for _, v := range vs {
		got = append(got, fmt.Sprintf("volume %s %d %v", v.Name, v.Size, v.Managed))
	}
	for name, v := range m.volumes {
		want = append(want, fmt.Sprintf("volume %s %d %v", name, m.size(name), v.managed))
	}
	for _, t := range ts {
		got = append(got, fmt.Sprintf("target %s %d LUNs %d names %v", t.Name, len(t.LUNs), len(t.Initiators), t.CHAP))
	}
	for name, t := range m.targets {
		want = append(want, fmt.Sprintf("target %s %d LUNs %d names %v", name, len(t.luns)+len(t.own), len(t.list), len(t.secrets) > 0))
	}
	for _, e := range es {
		got = append(got, "export "+e.Name)
	}
	for name := range m.exports {
		want = append(want, "export "+name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the daemon has\n  %s\nand should have\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return nil
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
				ask(func() error { return s.checkLUN(m, t, name, host, lun, v) })
				if v == "" || k == 1 && t.sees(hosts[0], lun) != "" {
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
		if len(t.secrets) > 0 && t.volumeAt(0) != "" {
			ask(func() error {
				bare := fmt.Sprintf("iscsi://%s/%s/0", s.portal(), name)
				if _, err := run(nil, "iscsi-readcapacity16", "-i", hosts[0], "-s", bare); err == nil {
					return fmt.Errorf("%s lets in who has no secret", name)
				}
				return nil
			})
		}
	}
	for _, e := range []string{"/first", "/second"} {
		ask(func() error {
			out, err := run(nil, "nfs-ls", fmt.Sprintf("nfs://%s%s?nfsport=2049&mountport=2049", s.ip, e))
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

// checkLUN has libiscsi ask for the capacity: v is what must be there, "" for nothing.
func (s *stand) checkLUN(m *model, t *target, name, host string, lun int, v string) error {
	out, err := run(nil, "iscsi-readcapacity16", "-i", host, "-s", s.url(t, name, lun))
	size, _ := strconv.Atoi(strings.TrimSpace(out))
	var f *failure
	switch {
	case err != nil && !errors.As(err, &f):
		return err
	case v == "" && err == nil:
		return fmt.Errorf("%s sees LUN %d of %s, of %d bytes, and should see nothing there", host, lun, name, size)
	case v != "" && err != nil:
		return fmt.Errorf("%s should see volume %s as LUN %d of %s: %w", host, v, lun, name, err)
	case v != "" && size != m.size(v):
		return fmt.Errorf("%s sees LUN %d of %s with %d bytes; volume %s has %d", host, lun, name, size, v, m.size(v))
	}
	return nil
}

func (s *stand) checkBytes(m *model, t *target, name, host string, lun int, v string) error {
	got, err := s.sluice(nil, "read", s.url(t, name, lun), "--initiator", host)
	if err != nil {
		return err
	}
	return equal(fmt.Sprintf("LUN %d of %s, volume %s,", lun, name, v), []byte(got), m.files[m.volumes[v].file])
}

var serialLine = regexp.MustCompile(`Unit Serial Number:\s*\[?([^\]\n]*)`)

func (s *stand) serial(t *target, name, host string, lun int) (string, error) {
	out, err := run(nil, "iscsi-inq", "-i", host, "-e", "1", "-c", "128", s.url(t, name, lun))
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
