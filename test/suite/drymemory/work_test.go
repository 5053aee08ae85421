package drymemory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/block"
)

// Each volume is a target of its own; the places are what one worker has to itself.
var volumes = []string{"ours", "qemu", "nbd", "cu"}

const (
	ours, qemu, face, cu = 0, 1, 2, 3

	volumeSize = 128 << 20
	workers    = 6       // requests at a time of one of our hosts
	place      = 4 << 20 // bytes
	longest    = 2 << 20
)

// work is something that a client does; all of a round's are done at the same time.
type work struct {
	name string
	do   func(r *round, rng *rand.Rand) error
}

var works = []work{
	{"our volume over iSCSI/TCP", func(r *round, rng *rand.Rand) error { return r.block("iscsi", 0, rng) }},
	{"our volume over iSER", func(r *round, rng *rand.Rand) error { return r.block("iser", 1, rng) }},
	{"another of ours over iSER", func(r *round, rng *rand.Rand) error { return r.block("iser", 2, rng) }},
	{"our files over TCP", func(r *round, rng *rand.Rand) error { return r.files(false, rng) }},
	{"our files over RDMA", func(r *round, rng *rand.Rand) error { return r.files(true, rng) }},
	{"libiscsi, by qemu-img", (*round).qemu},
	{"libiscsi, by iscsi-test-cu", (*round).cu},
	{"libnfs, by nfs-cp", (*round).libnfs},
	{"libnbd, by nbdcopy", (*round).nbd},
}

func noise(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	seed := [32]byte{byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())}
	_, _ = rand.NewChaCha8(seed).Read(b) // it never fails
	return b
}

func differ(what string, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Errorf("%s: %d bytes, %d wanted; other ones from %d on", what, len(got), len(want), i)
}

// parallel runs the workers of one host.
func parallel(rng *rand.Rand, f func(k int, rng *rand.Rand) error) error {
	var g errgroup.Group
	for k := range workers {
		own := rand.New(rand.NewPCG(rng.Uint64(), uint64(k)))
		g.Go(func() error { return f(k, own) })
	}
	return g.Wait()
}

// block does everything that a volume can, each worker in its place of the volume, and compares each read.
func (r *round) block(scheme string, host int, rng *rand.Rand) (err error) {
	v, end, err := r.open(scheme, ours)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return parallel(rng, func(k int, rng *rand.Rand) error {
		base := int64((host*workers + k) * place)
		return r.blockPlace(v, base, rng)
	})
}

func (r *round) blockPlace(v *block.Volume, base int64, rng *rand.Rand) error {
	is := make([]byte, place)
	for i := range r.effort {
		n := 512 * (1 + rng.IntN(longest/512))
		if rng.IntN(2) == 0 {
			n = 512 * (1 + rng.IntN(32))
		}
		off := 512 * rng.IntN((place-n)/512+1)
		at := base + int64(off)
		what := fmt.Sprintf("step %d, %d bytes at %d", i, n, at)
		switch rng.IntN(8) {
		case 0, 1, 2:
			copy(is[off:], noise(rng, n))
			if _, err := v.WriteAtContext(r.ctx, is[off:off+n], at); err != nil {
				return fmt.Errorf("write, %s: %w", what, err)
			}
		case 3:
			clear(is[off : off+n])
			if err := v.WriteZeroes(r.ctx, at, int64(n), rng.IntN(2) == 0); err != nil {
				return fmt.Errorf("zeroes, %s: %w", what, err)
			}
		case 4:
			next := noise(rng, 512)
			if _, err := v.CompareAndWrite(r.ctx, at, is[off:off+512], next); err != nil {
				return fmt.Errorf("compare and write, %s: %w", what, err)
			}
			copy(is[off:], next)
		case 5:
			if err := v.Flush(r.ctx); err != nil {
				return fmt.Errorf("flush: %w", err)
			}
		default:
			got := make([]byte, n)
			if _, err := v.ReadAtContext(r.ctx, got, at); err != nil {
				return fmt.Errorf("read, %s: %w", what, err)
			}
			if err := differ(what, got, is[off:off+n]); err != nil {
				return err
			}
		}
		r.steps.Add(1)
	}
	got := make([]byte, place)
	if _, err := v.ReadAtContext(r.ctx, got, base); err != nil {
		return fmt.Errorf("read all: %w", err)
	}
	return differ("in the end", got, is)
}

// files writes, reads and lists, each worker in a file of its own; the server's own disk is the judge in the end.
func (r *round) files(rdma bool, rng *rand.Rand) (err error) {
	v, end, err := r.mount(rdma)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return parallel(rng, func(k int, rng *rand.Rand) error {
		name := fmt.Sprintf("ours-%v-%d", rdma, k)
		f, err := v.Create(r.ctx, name, 0o644)
		if err != nil {
			return err
		}
		is := noise(rng, place)
		if _, err := f.WriteAt(is, 0); err != nil {
			return fmt.Errorf("write all: %w", err)
		}
		for i := range r.effort {
			n := 1 + rng.IntN(longest)
			off := rng.IntN(place - n + 1)
			what := fmt.Sprintf("step %d, %d bytes at %d", i, n, off)
			switch rng.IntN(5) {
			case 0, 1:
				copy(is[off:], noise(rng, n))
				if _, err := f.WriteAt(is[off:off+n], int64(off)); err != nil {
					return fmt.Errorf("write, %s: %w", what, err)
				}
			case 2:
				if err := f.Sync(); err != nil {
					return fmt.Errorf("sync: %w", err)
				}
			case 3:
				if _, err := v.ReadDirContext(r.ctx, "."); err != nil {
					return fmt.Errorf("list: %w", err)
				}
			default:
				got := make([]byte, n)
				if _, err := f.ReadAt(got, int64(off)); err != nil {
					return fmt.Errorf("read, %s: %w", what, err)
				}
				if err := differ(what, got, is[off:off+n]); err != nil {
					return err
				}
			}
			r.steps.Add(1)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		got, err := os.ReadFile(filepath.Join(r.dir, "export", name))
		return errors.Join(err, differ("on the server's disk", got, is))
	})
}

// copies has a program of others copy noise in and out again.
func (r *round) copies(name string, size int, rng *rand.Rand, in, out func(file string) error) error {
	from, to := filepath.Join(r.dir, name+".in"), filepath.Join(r.dir, name+".out")
	for range 2 {
		want := noise(rng, size)
		if err := os.WriteFile(from, want, 0o600); err != nil {
			return err
		}
		if err := in(from); err != nil {
			return err
		}
		r.steps.Add(1)
		if err := out(to); err != nil {
			return err
		}
		r.steps.Add(1)
		got, err := os.ReadFile(to)
		if err != nil {
			return err
		}
		if err := differ("copied out", got[:min(len(got), size)], want); err != nil {
			return err
		}
		if err := os.Remove(to); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) qemu(rng *rand.Rand) error {
	url := r.url("iscsi", qemu)
	return r.copies("qemu", r.effort<<21, rng, func(file string) error {
		return r.tool("qemu-img", "qemu-utils", "convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", file, url)
	}, func(file string) error {
		return r.tool("qemu-img", "qemu-utils", "convert", "-W", "-m", "16", "-f", "raw", "-O", "raw", url, file)
	})
}

func (r *round) cu(rng *rand.Rand) error {
	families := []string{"SCSI.Read10", "SCSI.Read16", "SCSI.Write10", "SCSI.Write16", "SCSI.WriteSame16", "SCSI.Unmap", "SCSI.Inquiry", "iSCSI.iSCSIResiduals", "iSCSI.iSCSITMF", "iSCSI.iSCSIdatasn"}
	for range 2 {
		if err := r.tool("iscsi-test-cu", "libiscsi-bin", "--dataloss", "--test="+families[rng.IntN(len(families))], r.url("iscsi", cu)); err != nil {
			return err
		}
		r.steps.Add(1)
	}
	return nil
}

func (r *round) libnfs(rng *rand.Rand) error {
	_, port, _ := strings.Cut(r.nfs, ":")
	n := 0
	url := func() string {
		return fmt.Sprintf("nfs://127.0.0.1/data/libnfs%d?nfsport=%s&mountport=%s", n, port, port)
	}
	return r.copies("libnfs", r.effort<<21, rng, func(file string) error {
		n++ // it makes the file, and takes none that is there
		return r.tool("nfs-cp", "libnfs-utils", file, url())
	}, func(file string) error { return r.tool("nfs-cp", "libnfs-utils", url(), file) })
}

// nbd is a volume's local face beside the volume's own host: what a program asks of it waits for memory of one pool.
func (r *round) nbd(rng *rand.Rand) (err error) {
	v, end, err := r.open("iser", face)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	s := nbd.New(v, nbd.Options{Name: "dry"})
	sock := filepath.Join(r.dir, "nbd.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-served)
	}()
	uri := "nbd+unix:///?socket=" + sock
	return r.copies("nbd", r.effort<<21, rng, func(file string) error { return r.tool("nbdcopy", "libnbd-bin", "--connections=4", file, uri) },
		func(file string) error { return r.tool("nbdcopy", "libnbd-bin", "--connections=4", uri, file) })
}
