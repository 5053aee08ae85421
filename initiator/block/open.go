package block

import (
	"context"
	"errors"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// Open opens the volume of a URL, with an Initiator of its own that its Close closes too. More URLs are more paths to the
// same unit. An iser:// URL goes through a device of its own as well, the software RNIC or what the URL's provider names,
// unless Options has a Device or a Provider.
func Open(ctx context.Context, url string, o Options, more ...string) (*Volume, error) {
	var set fabric.Set
	if o.Log != nil {
		set.Say = func(line string) { o.Log.Warn(line) }
	}
	if o.Device == nil && o.Provider == nil {
		o.Provider = set.Device
	}
	i, err := New(o)
	if err != nil {
		return nil, err
	}
	v, err := i.Open(ctx, append([]string{url}, more...)...)
	if err != nil {
		return nil, errors.Join(err, i.Close(), set.Close())
	}
	v.close = func() error { return errors.Join(i.Close(), set.Close()) }
	return v, nil
}

// Open logs in to the logical unit of a URL. Further URLs are further paths to the same unit: each must show the same
// identity. It fails unless one path comes up; the others are tried on.
func (i *Initiator) Open(ctx context.Context, urls ...string) (*Volume, error) {
	if len(urls) == 0 {
		return nil, badURL("none given")
	}
	v := &Volume{ini: i, fencers: map[*path]bool{}}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.active.Store(&[]*path{})
	err := v.plan(urls)
	if err == nil {
		err = v.begin(ctx)
	}
	if err != nil {
		v.cancel()
		v.ports()
		return nil, err
	}
	return v, nil
}

// plan makes the paths of URLs.
func (v *Volume) plan(urls []string) error {
	for _, raw := range urls {
		u, err := v.ini.parse(raw)
		if err != nil {
			return err
		}
		if u.Target == "" {
			return badURL("the target's name is missing; `discover` lists them")
		}
		port := v.ini.port(u)
		v.paths = append(v.paths, &path{v: v, u: u, isid: port.isid, port: port, look: make(chan struct{}, 1), login: make(chan struct{}, 1)})
	}
	return nil
}

// first is the first session of a path, and the unit that it shows; nothing where it does not come up.
type first struct {
	s *session
	u *Unit
}

// devices opens what the paths go through before any is connected: memory can become shared only while nothing of it is in use.
func (v *Volume) devices() {
	for _, p := range v.paths {
		if p.u.ISER {
			_, _ = v.ini.device(p.u) // the path says what is wrong when it connects
		}
	}
}

// begin connects every path, takes those that are up into use, and starts the goroutines that keep them. The first unit to
// answer is the one; the others have to be the same.
func (v *Volume) begin(ctx context.Context) error {
	v.devices()
	got := make([]first, len(v.paths))
	var errs []error
	for k, p := range v.paths {
		s, u, err := p.connect(ctx)
		if err != nil {
			errs = append(errs, err)
			v.note(p, err)
			continue
		}
		if got[k] = (first{s, u}); v.unit.Load() == nil {
			v.unit.Store(u)
		}
	}
	if len(errs) == len(v.paths) {
		return errors.Join(errs...)
	}
	for k, p := range v.paths {
		if got[k].s == nil {
			continue
		}
		if err := v.up(p, got[k].s, got[k].u); err != nil {
			for _, f := range got {
				if f.s != nil {
					f.s.leave()
				}
			}
			return err
		}
	}
	for k, p := range v.paths {
		f := got[k]
		v.wg.Go(func() { p.keep(f.s) })
		v.wg.Go(p.watch)
	}
	return nil
}
