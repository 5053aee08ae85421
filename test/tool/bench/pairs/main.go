// Command pairs compares the speed of two commits: it builds both in worktrees of their own and runs the benchmark of each in
// turn, in random order within a pair, so that what else the machine does meets both. Per row it shows the geometric mean of
// new over old, its 95 % interval (Student's t on the logarithms) and all rounds.
//
//	go run ./test/tool/bench/pairs -old COMMIT [-new HEAD] [-pairs 11] [-parts block,nbd,nfs] [-resume FILE] [-- FLAGS OF THE BENCHMARK]
//
// What ends it early, a signal or an error, leaves the table of the pairs that are done. With -resume they are kept in a file too, and
// a later call with the same file goes on behind them.
//
// The exit status is 1 where the mean over all rows is below its bar or a row's whole interval lies below its own, 2 for a
// mistake in the call.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

type options struct {
	old, now, parts string
	resume          string
	pairs           int
	mean, row       float64
	args            []string
}

func main() {
	var o options
	flag.StringVar(&o.old, "old", "", "the commit to compare with")
	flag.StringVar(&o.now, "new", "HEAD", "the commit to judge")
	flag.IntVar(&o.pairs, "pairs", 11, "how often each is measured")
	flag.StringVar(&o.parts, "parts", "block,nbd,nfs", "parts of the benchmark")
	flag.StringVar(&o.resume, "resume", "", "a file that keeps the pairs that are done; those in it are not measured again")
	flag.Float64Var(&o.mean, "mean", 0.97, "bar for the geometric mean over all rows")
	flag.Float64Var(&o.row, "row", 0.95, "bar for the interval of each row")
	flag.Parse()
	if o.args = flag.Args(); o.old == "" || o.pairs < 1 {
		fmt.Fprintln(os.Stderr, "pairs: -old names the commit to compare with, e.g. -old HEAD~20, and -pairs is at least 1")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pairs:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	for _, rev := range []*string{&o.old, &o.now} {
		if *rev, err = commit(ctx, *rev); err != nil {
			return err
		}
	}
	var j *journal
	var done []pair
	if o.resume != "" {
		if j, done, err = openJournal(o.resume, task{o.old, o.now, o.parts, o.args}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, j.close()) }()
	}
	dir, err := os.MkdirTemp("", "sluice-pairs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var trees [2]string
	for i, rev := range []string{o.old, o.now} {
		trees[i] = filepath.Join(dir, []string{"old", "new"}[i])
		if out, err := exec.CommandContext(ctx, "git", "worktree", "add", "--detach", trees[i], rev).CombinedOutput(); err != nil {
			return fmt.Errorf("git worktree add %s: %w\n%s", rev, err, out)
		}
		defer func() {
			if out, rerr := exec.Command("git", "worktree", "remove", "--force", trees[i]).CombinedOutput(); rerr != nil {
				err = errors.Join(err, fmt.Errorf("git worktree remove: %w\n%s", rerr, out))
			}
		}()
		if err := build(ctx, trees[i]); err != nil {
			return fmt.Errorf("build %s: %w", rev, err)
		}
	}
	return o.pair(ctx, os.Stdout, done, j, func(i int, part string) (map[string]float64, error) {
		return measure(ctx, trees[i], part, o.args)
	})
}

// commit is a revision by its full name.
func commit(ctx context.Context, rev string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--verify", rev+"^{commit}").Output()
	if err != nil {
		return "", fmt.Errorf("%s is no commit: %w", rev, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// pair measures what is missing and judges all pairs. Whatever ends it, the whole ones are shown.
func (o *options) pair(ctx context.Context, w io.Writer, done []pair, j *journal, measure func(side int, part string) (map[string]float64, error)) error {
	t := newTable()
	for _, p := range done {
		if err := t.add(p.Old, p.New); err != nil {
			return err
		}
	}
	var err error
	for n := len(done); n < o.pairs && err == nil; n++ {
		var p pair
		if p, err = o.one(ctx, measure); err == nil {
			err = t.add(p.Old, p.New)
		}
		if err == nil {
			err = j.add(p)
		}
		if err != nil {
			err = fmt.Errorf("pair %d: %w", n+1, err)
			break
		}
		fmt.Fprintf(w, "pair %d of %d: mean ratio %.3f\n", n+1, o.pairs, t.last())
	}
	if len(t.logs) > 0 {
		fmt.Fprint(w, t)
	}
	if err != nil {
		return err
	}
	return t.judge(o.mean, o.row)
}

// one measures a pair.
func (o *options) one(ctx context.Context, measure func(side int, part string) (map[string]float64, error)) (pair, error) {
	p := pair{map[string]float64{}, map[string]float64{}}
	for _, part := range strings.Split(o.parts, ",") {
		for _, i := range rand.Perm(2) {
			rates, err := measure(i, part)
			if ctx.Err() != nil {
				return p, context.Cause(ctx)
			}
			if err != nil {
				return p, fmt.Errorf("%s of %s: %w", part, []string{o.old, o.now}[i], err)
			}
			maps.Copy([]map[string]float64{p.Old, p.New}[i], rates)
		}
	}
	return p, nil
}

// build makes the programs as they are handed out, and the benchmark, in bin.
func build(ctx context.Context, tree string) error {
	bench := "./test/tool/bench"
	if _, err := os.Stat(filepath.Join(tree, bench)); errors.Is(err, fs.ErrNotExist) {
		bench = "./test/bench" // where earlier trees have it
	}
	for _, args := range [][]string{{"./cmd/sluiced", "./cmd/sluice"}, {bench}} {
		c := exec.CommandContext(ctx, "go", append([]string{"build", "-trimpath", "-o", "bin/"}, args...)...)
		c.Dir = tree
		if args[0] != bench {
			c.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
	}
	return nil
}

// measure runs a part of the benchmark of a tree and returns what Sluice did a second, by row.
func measure(ctx context.Context, tree, part string, args []string) (map[string]float64, error) {
	c := exec.CommandContext(ctx, "bin/bench", append([]string{"-part", part, "-allocs", "0"}, args...)...)
	c.Dir = tree
	out, err := c.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	rates := rows(string(out))
	if len(rates) == 0 {
		return nil, fmt.Errorf("no row in what it says:\n%s", out)
	}
	return rates, nil
}
