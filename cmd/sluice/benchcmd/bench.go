// Package benchcmd is "sluice bench": load on a volume in fio's vocabulary, with latencies that add up and a report that
// tools for fio read.
package benchcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/cmd/sluice/blockcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/version"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/daemon"
)

type options struct {
	conn                     blockcmd.Connection
	rw, bs, size, offset     string
	report                   string
	depth, jobs, mix         int
	runtime                  time.Duration
	verify, destroy, noStats bool
}

// maxJobs bounds sessions: more than a target's processors only adds switches.
const maxJobs = 64

// Command is "sluice bench".
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "bench URL",
		Short: "Measure a volume: throughput and latency, in fio's vocabulary",
		Long: `Measure a volume over its own sessions, without a file system or block layer in between. The flags are fio's. Patterns that
write destroy what is on the volume, so they need --destroy. With --verify every block written is read back and compared.
With --output json the report has the shape of fio's, key for key, for tools and scripts made for that.

With --report DIR it measures throughput and latency at iodepth 1 to 64 and at bs 4k to 1m, the other flag as given, --runtime
(2s if not given) each, and leaves plots (SVG), a page that shows them (README.md) and every figure (report.json) in DIR.`,
		Example: `  sluice bench iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --rw randread --bs 4k --iodepth 32 --runtime 10s
  sluice bench iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --rw randrw --rwmixread 70 --destroy --verify --size 64m
  sluice bench iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --rw randread --report /tmp/report`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if o.report != "" && !c.Flags().Changed("runtime") {
				o.runtime = pointTime
			}
			s, err := o.spec()
			if err != nil {
				return err
			}
			if o.report != "" {
				if err := o.sweep(c.Context(), c.ErrOrStderr(), args[0], o.report); err != nil {
					return err
				}
				page := filepath.Join(o.report, "README.md")
				return ui.Print(c, map[string]string{"report": page}, func(t *ui.Table) { t.Row(page) })
			}
			rep, err := o.run(c.Context(), c.ErrOrStderr(), args[0], s)
			if err != nil {
				return err
			}
			return ui.Print(c, rep, rep.table)
		},
	}
	o.conn.Flags(c)
	f := c.Flags()
	f.StringVar(&o.rw, "rw", "randread", "read, write, randread, randwrite, rw, randrw")
	f.StringVar(&o.bs, "bs", "4k", "bytes of one request, up to 1m")
	f.IntVar(&o.depth, "iodepth", 32, "requests under way on each session")
	f.IntVar(&o.jobs, "numjobs", 1, "sessions side by side")
	f.DurationVar(&o.runtime, "runtime", 10*time.Second, "how long")
	f.IntVar(&o.mix, "rwmixread", 50, "percent of reads in rw and randrw")
	f.StringVar(&o.offset, "offset", "0", "where the region that is worked on begins")
	f.StringVar(&o.size, "size", "", "its size, of each job (default: the rest of the volume, shared among the jobs)")
	f.BoolVar(&o.verify, "verify", false, "read back what was written and compare")
	f.BoolVar(&o.destroy, "destroy", false, "writing is allowed: what is on the volume is lost")
	f.StringVar(&o.report, "report", "", "directory for a report with plots against depth and block size")
	f.BoolVar(&o.noStats, "quiet", false, "no line of progress")
	for flag, values := range map[string][]string{"rw": patterns, "bs": sweepBlocks, "iodepth": {"1", "8", "32", "128"}} {
		// The only error is a flag that does not exist.
		if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err)
		}
	}
	return c
}

// pointTime is how long a report's points take by default: 16 of them make half a minute.
const pointTime = 2 * time.Second

var patterns = []string{"read", "write", "randread", "randwrite", "rw", "randrw"}

func (o *options) spec() (*spec, error) {
	if !slices.Contains(patterns, o.rw) {
		return nil, ui.Usagef("--rw %q is none of %v", o.rw, patterns)
	}
	s := &spec{pattern: o.rw, mix: o.mix, depth: o.depth, runtime: o.runtime, verify: o.verify}
	s.random = len(o.rw) > 4 && o.rw[:4] == "rand"
	s.hasRead = o.rw != "write" && o.rw != "randwrite"
	s.hasWrite = o.rw != "read" && o.rw != "randread"
	bs, err := daemon.ParseSize(o.bs)
	if err != nil {
		return nil, ui.Usage(err)
	}
	if s.offset, err = daemon.ParseSize(o.offset); err != nil {
		return nil, ui.Usage(err)
	}
	if o.size != "" {
		if s.size, err = daemon.ParseSize(o.size); err != nil {
			return nil, ui.Usage(err)
		}
	}
	switch {
	case bs < 512 || bs > mem.MaxBuf:
		return nil, ui.Usagef("--bs %s is not between 512 and 1m", o.bs)
	case o.depth < 1 || o.depth > block.MaxDepth:
		return nil, ui.Usagef("--iodepth %d is not between 1 and %d", o.depth, block.MaxDepth)
	case o.jobs < 1 || o.jobs > maxJobs:
		return nil, ui.Usagef("--numjobs %d is not between 1 and %d", o.jobs, maxJobs)
	case o.mix < 0 || o.mix > 100:
		return nil, ui.Usagef("--rwmixread %d is no percentage", o.mix)
	case o.runtime <= 0:
		return nil, ui.Usagef("--runtime must be longer than nothing")
	case s.hasWrite && !o.destroy:
		return nil, ui.Usagef("--rw %s destroys what is on the volume; say --destroy if that is meant", o.rw)
	case o.verify && !s.hasWrite:
		return nil, ui.Usagef("--verify needs a pattern that writes")
	}
	s.block = int(bs)
	return s, nil
}

// run opens a session for each job, lets them work, and sums up.
func (o *options) run(ctx context.Context, progress io.Writer, url string, s *spec) (rep *report, err error) {
	pool := mem.NewPool(int64(max(64<<20, 2*o.jobs*o.depth*s.block)) + 128<<20)
	ini, closer, err := o.conn.OpenWith(pool, o.depth)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closer()) }()
	var jobs []*job
	defer func() {
		for _, j := range jobs {
			err = errors.Join(err, j.v.Close())
		}
	}()
	var total atomic.Int64
	for i := range o.jobs {
		v, err := ini.Open(ctx, url)
		if err != nil {
			return nil, blockcmd.Explain(err)
		}
		js, err := o.region(s, v.Geometry(), i)
		if err != nil {
			return nil, errors.Join(err, v.Close())
		}
		jobs = append(jobs, newJob(js, v, i, &total))
	}
	m := measured{began: time.Now(), before: usage(), samples: startSampler(jobs)}
	stop := context.AfterFunc(ctx, func() {
		for _, j := range jobs {
			j.stop.Store(true)
		}
	})
	defer stop()
	end := o.progress(progress, &total, m.began)
	var wg sync.WaitGroup
	errs := make([]error, len(jobs))
	for i, j := range jobs {
		wg.Go(func() { errs[i] = j.run() })
	}
	wg.Wait()
	m.ended, m.after = time.Now(), usage()
	m.samples.end()
	end()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return nil, blockcmd.Explain(err)
	}
	rep = newReport(o, s, jobs, m, version.String())
	for _, j := range jobs {
		if j.stamps != nil {
			n, err := j.check(ctx)
			if err != nil {
				return nil, blockcmd.Explain(err)
			}
			rep.Verified += n
		}
	}
	return rep, nil
}

// region gives each job its own part of the volume.
func (o *options) region(s *spec, g blockdev.Geometry, i int) (*spec, error) {
	js := *s
	if js.block%g.Logical != 0 || js.offset%int64(g.Logical) != 0 {
		return nil, ui.Usagef("--bs and --offset must be multiples of the volume's block of %d bytes", g.Logical)
	}
	if js.size == 0 {
		js.size = (g.Size - js.offset) / int64(o.jobs)
	}
	js.size -= js.size % int64(js.block)
	js.offset += int64(i) * js.size
	if js.size <= 0 || js.offset+js.size > g.Size {
		return nil, ui.Usagef("%d jobs of %s from %s do not fit the volume of %s", o.jobs, ui.Bytes(s.size), ui.Bytes(s.offset), ui.Bytes(g.Size))
	}
	if blocks := js.size / int64(js.block); js.verify && blocks < int64(2*js.depth) {
		return nil, ui.Usagef("--verify needs at least %d blocks for --iodepth %d", 2*js.depth, js.depth)
	}
	return &js, nil
}

// progress writes a line a second to a terminal.
func (o *options) progress(w io.Writer, total *atomic.Int64, began time.Time) func() {
	f, ok := w.(*os.File)
	if ok {
		fi, err := f.Stat()
		ok = err == nil && fi.Mode()&os.ModeCharDevice != 0
	}
	if !ok || o.noStats {
		return func() {}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last int64
		for {
			select {
			case <-stop:
				fmt.Fprint(f, "\r\033[K")
				return
			case now := <-tick.C:
				n := total.Load()
				fmt.Fprintf(f, "\r\033[K%s of %s: %s/s", now.Sub(began).Round(time.Second), o.runtime, ui.Bytes(n-last))
				last = n
			}
		}
	}()
	return func() { close(stop); <-done }
}

// check reads back every block that the job wrote.
func (j *job) check(ctx context.Context) (int64, error) {
	buf, err := j.v.Memory().Get(j.s.block)
	if err != nil {
		return 0, err
	}
	defer buf.Release()
	want := bytes.Clone(j.fill)
	var n int64
	for b, times := range j.stamps {
		if times == 0 {
			continue
		}
		at := j.s.offset + int64(b)*int64(j.s.block)
		if err := j.v.ReadSpans(ctx, at, buf.Span()); err != nil {
			return n, err
		}
		stamp(want, j.id, int64(b), times)
		if got := buf.Bytes(); !bytes.Equal(got, want) {
			k := 0
			for got[k] == want[k] {
				k++
			}
			return n, ui.ExitError{Code: ui.CodeDiffer, Err: fmt.Errorf("what was read differs from what was written, first at byte %d of the volume (written %d times)", at+int64(k), times)}
		}
		n++
	}
	return n, nil
}
