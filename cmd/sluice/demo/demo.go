// Package demo shows the main job end to end: a file system image goes to a volume over iSER, the target is killed and
// started again, and the image comes back whole over both transports.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/blockcmd"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// imageSize is the demo's file system: large enough for a throughput, small enough for a minute on a slow disk.
const imageSize = 256 << 20

// Step is one thing that was shown.
type Step struct {
	What   string        `json:"what"`
	Saw    string        `json:"saw"`
	Bytes  int64         `json:"bytes,omitempty"`
	Took   time.Duration `json:"took_ns,omitempty"`
	SHA256 string        `json:"sha256,omitempty"`
}

// Command is "sluice demo".
func Command() *cobra.Command {
	var image, keep string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Show it all on this machine: write over iSER, SIGKILL the target, read back, compare",
		Long: `Start sluiced as a process on a loopback port, make a real ext4 image with files in it (needs mkfs.ext4; or give an image with
--image), write it to a volume over iSER, flush, kill the target with SIGKILL, start it again, read the image back over iSER
and over iSCSI/TCP, compare, and run e2fsck on it. Works as an ordinary user and leaves nothing behind.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var steps []Step
			j, err := ui.JSON(c)
			if err != nil {
				return err
			}
			show := func(s Step) {
				steps = append(steps, s)
				if !j {
					line := fmt.Sprintf("%-44s %s", s.What, s.Saw)
					if s.Took > 0 && s.Bytes > 0 {
						line += fmt.Sprintf(" in %.2f s, %s/s", s.Took.Seconds(), ui.Bytes(int64(float64(s.Bytes)/s.Took.Seconds())))
					}
					fmt.Fprintln(c.OutOrStdout(), line)
				}
			}
			if err := run(c.Context(), image, keep, show); err != nil {
				return err
			}
			if j {
				return ui.Print(c, steps, nil)
			}
			return nil
		},
	}
	c.Flags().StringVar(&image, "image", "", "use this file system image instead of making one")
	c.Flags().StringVar(&keep, "dir", "", "work in this directory and leave it there")
	return c
}

func run(ctx context.Context, image, keep string, show func(Step)) (err error) {
	bin, err := findDaemon()
	if err != nil {
		return err
	}
	dir := keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if image == "" {
		image = filepath.Join(dir, "image.ext4")
		files, err := makeImage(ctx, dir, image, imageSize)
		if err != nil {
			return err
		}
		show(Step{What: "mkfs.ext4 made an image", Saw: fmt.Sprintf("%s with %d files", ui.Bytes(imageSize), files)})
	}
	sum, size, err := sumFile(image)
	if err != nil {
		return err
	}
	s, err := newServer(bin, dir, (size+1<<20-1)>>20<<20)
	if err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() {
		if s.cmd != nil {
			err = errors.Join(err, s.kill())
		}
	}()
	show(Step{What: "sluiced serves a volume", Saw: s.url("iser")})
	return roundTrip(ctx, s, dir, image, sum, size, show)
}

func roundTrip(ctx context.Context, s *server, dir, image, sum string, size int64, show func(Step)) error {
	conn := blockcmd.Connection{CRC: "on"}
	res, err := conn.Put(ctx, image, s.url("iser"))
	if err != nil {
		return fmt.Errorf("write over iSER: %w", err)
	}
	show(Step{What: "written over iSER and flushed", Saw: ui.Bytes(res.Bytes), Bytes: res.Bytes, Took: res.Elapsed, SHA256: res.SHA256})
	if err := s.kill(); err != nil {
		return err
	}
	show(Step{What: "target killed", Saw: "SIGKILL"})
	if err := s.start(ctx); err != nil {
		return err
	}
	show(Step{What: "target started again", Saw: s.addr})
	back := filepath.Join(dir, "back.img")
	for _, over := range []struct{ scheme, name string }{{"iser", "iSER"}, {"iscsi", "iSCSI/TCP"}} {
		res, err := conn.Get(ctx, s.url(over.scheme), back, size)
		if err != nil {
			return fmt.Errorf("read over %s: %w", over.name, err)
		}
		if res.SHA256 != sum {
			return ui.ExitError{Code: ui.CodeDiffer, Err: fmt.Errorf("what came back over %s differs: sha256 %s, written %s", over.name, res.SHA256, sum)}
		}
		show(Step{What: "read back over " + over.name + ", every byte the same", Saw: ui.Bytes(res.Bytes), Bytes: res.Bytes, Took: res.Elapsed, SHA256: res.SHA256})
	}
	if isExt4(back) {
		ran, err := fsck(ctx, back)
		if err != nil {
			return err
		}
		saw := "clean"
		if !ran {
			saw = "not run: e2fsck is not installed (package e2fsprogs)"
		}
		show(Step{What: "e2fsck of what was read back", Saw: saw})
	}
	if err := s.stop(); err != nil {
		return fmt.Errorf("sluiced did not end well: %w: %s", err, s.log.String())
	}
	show(Step{What: "target ended on SIGTERM", Saw: "exit code 0"})
	return nil
}
