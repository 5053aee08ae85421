//go:build linux

// Command fsx exercises a file system at random, against models that know what must be there. The lab runs it on mounts;
// it needs nothing but a directory.
//
//	fsx [-seed N] [-ops N] [-max BYTES] [-direct] [-no LIST] FILE   one file: read, write, truncate, map, punch, reopen
//	fsx -churn [-procs N] [-seed N] [-ops N] DIR                     names and trees, from several processes
//	fsx -list [-files N] [-rounds N] [-seed N] DIR                   a directory listed while others rename in it
//
// The seed is printed: the same one makes the same operations. The exit status is 0 when all was as the model says.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fsx:", err)
		os.Exit(1)
	}
}

func run() error {
	var f fileTest
	var c churn
	var l listing
	seed := flag.Uint64("seed", 0, "of the random operations (default: the time)")
	ops := flag.Int("ops", 2000, "operations; for -churn in each process")
	churning := flag.Bool("churn", false, "exercise names in a directory")
	lists := flag.Bool("list", false, "list a directory while others rename")
	without := flag.String("no", "", "operations to leave out, comma separated: map, punch, truncate, reopen")
	flag.IntVar(&f.max, "max", 256<<10, "largest size of the file in bytes")
	flag.BoolVar(&f.direct, "direct", false, "read and write with O_DIRECT, in blocks; no maps then")
	flag.IntVar(&c.procs, "procs", 4, "processes of -churn")
	flag.IntVar(&c.worker, "worker", -1, "be this process of -churn")
	flag.IntVar(&l.files, "files", 10_000, "files of -list")
	flag.IntVar(&l.rounds, "rounds", 3, "times that -list reads the directory")
	flag.StringVar(&l.create, "create", "", "where -list makes its files: another way to DIR")
	flag.BoolVar(&l.renames, "rename", false, "be the one who renames for -list")
	flag.Parse()
	if flag.NArg() != 1 || *ops < 1 || *churning && *lists {
		flag.Usage()
		return fmt.Errorf("one FILE or DIR, and one of its forms")
	}
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	path := flag.Arg(0)
	begin := time.Now()
	var what string
	var err error
	switch {
	case *churning:
		c.dir, c.seed, c.ops = path, *seed, *ops
		what, err = c.run()
	case *lists:
		l.dir, l.seed = path, *seed
		what, err = l.run()
	default:
		f.path, f.seed, f.ops = path, *seed, *ops
		for _, w := range strings.Split(*without, ",") {
			if err := f.leaveOut(w); err != nil {
				return err
			}
		}
		what, err = f.run()
	}
	if what == "" && err == nil {
		return nil // a process that another one of these has started
	}
	fmt.Printf("fsx: seed %d: %s in %.1f s\n", *seed, what, time.Since(begin).Seconds())
	if err != nil {
		return fmt.Errorf("seed %d: %w", *seed, err)
	}
	return nil
}
