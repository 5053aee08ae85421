package blockcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/daemon"
)

// Commands are discover, inquiry, read and write; cp is Copy.
func Commands() []*cobra.Command {
	return []*cobra.Command{discover(), inquiry(), read(), write()}
}

func discover() *cobra.Command {
	var conn Connection
	c := &cobra.Command{
		Use:     "discover URL",
		Short:   "List the targets of a portal and their addresses",
		Example: "  sluice discover iser://192.0.2.1\n  sluice discover 'iscsi://[2001:db8::1]:3260' --output json",
		Args:    volumeArg(1),
		RunE: func(c *cobra.Command, args []string) error {
			ini, closer, err := conn.Open()
			if err != nil {
				return err
			}
			targets, err := ini.Discover(c.Context(), args[0])
			if err = errors.Join(err, closer()); err != nil {
				return explain(err)
			}
			type entry struct {
				Target string `json:"target"`
				Portal string `json:"portal"`
				Group  string `json:"group"`
			}
			list := []entry{}
			for _, t := range targets {
				for _, p := range t.Portals {
					list = append(list, entry{t.Name, p.Addr, p.Group})
				}
			}
			return ui.Print(c, list, func(t *ui.Table) {
				t.Row("TARGET", "PORTAL", "GROUP")
				for _, e := range list {
					t.Row(e.Target, e.Portal, e.Group)
				}
			})
		},
	}
	conn.Flags(c)
	return c
}

func inquiry() *cobra.Command {
	var conn Connection
	c := &cobra.Command{
		Use:   "inquiry URL",
		Short: "Say what a volume is and can do",
		Long: `Say what a volume is and can do. With --output json sizes are bytes, and the names are: size, logical_block, physical_block,
optimal_io, longest_transfer, longest_unmap (0: no UNMAP), unmap_unit, longest_write_same, longest_compare_and_write (0: none),
write_protected, write_cache, thin, write_same_unmaps, unmapped_reads_zero, rotational, alua, vendor, product, revision, serial, id,
relative_port and port_group (null where the target names none).`,
		Example: "  sluice inquiry iser://127.0.0.1/iqn.2026-11.io.sluice:default/0\n  sluice inquiry iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 -o json | jq .size",
		Args:    volumeArg(1),
		RunE: func(c *cobra.Command, args []string) error {
			return conn.WithVolume(c.Context(), args[0], func(v *block.Volume) error {
				g := v.Unit()
				return ui.Print(c, describe(&g), func(t *ui.Table) {
					t.Row("vendor", g.Vendor)
					t.Row("product", g.Product)
					t.Row("revision", g.Revision)
					t.Row("serial", g.Serial)
					t.Row("id", g.ID)
					t.Row("size", fmt.Sprintf("%s (%d bytes)", ui.Bytes(g.Size), g.Size))
					t.Row("logical block", g.Logical)
					t.Row("physical block", g.Physical)
					t.Row("longest transfer", ui.Bytes(g.MaxTransfer))
					t.Row("write protected", g.ReadOnly)
					t.Row("write cache", g.WriteCache)
					t.Row("thin", g.Thin)
					t.Row("unmap", g.MaxUnmap > 0)
					t.Row("compare and write", ui.Bytes(g.MaxCompare))
					t.Row("ALUA", g.ALUA)
				})
			})
		},
	}
	conn.Flags(c)
	return c
}

// description is a volume's geometry under the names that scripts can trust; the help of inquiry lists them.
type description struct {
	Size           int64   `json:"size"`
	Logical        int     `json:"logical_block"`
	Physical       int     `json:"physical_block"`
	OptimalIO      int     `json:"optimal_io"`
	MaxTransfer    int64   `json:"longest_transfer"`
	MaxUnmap       int64   `json:"longest_unmap"`
	UnmapUnit      int64   `json:"unmap_unit"`
	MaxWriteSame   int64   `json:"longest_write_same"`
	MaxCompare     int64   `json:"longest_compare_and_write"`
	WriteProtected bool    `json:"write_protected"`
	WriteCache     bool    `json:"write_cache"`
	Thin           bool    `json:"thin"`
	UnmapSame      bool    `json:"write_same_unmaps"`
	ReadsZero      bool    `json:"unmapped_reads_zero"`
	Rotational     bool    `json:"rotational"`
	ALUA           bool    `json:"alua"`
	Vendor         string  `json:"vendor"`
	Product        string  `json:"product"`
	Revision       string  `json:"revision"`
	Serial         string  `json:"serial"`
	ID             string  `json:"id"`
	RelativePort   uint16  `json:"relative_port"`
	PortGroup      *uint16 `json:"port_group"`
}

func describe(g *block.Unit) description {
	d := description{Size: g.Size, Logical: g.Logical, Physical: g.Physical, OptimalIO: g.OptimalIO, MaxTransfer: g.MaxTransfer,
		MaxUnmap: g.MaxUnmap, UnmapUnit: g.UnmapUnit, MaxWriteSame: g.MaxWriteSame, MaxCompare: g.MaxCompare,
		WriteProtected: g.ReadOnly, WriteCache: g.WriteCache, Thin: g.Thin, UnmapSame: g.UnmapSame, ReadsZero: g.DiscardZeroes,
		Rotational: g.Rotational, ALUA: g.ALUA, Vendor: g.Vendor, Product: g.Product, Revision: g.Revision, Serial: g.Serial, ID: g.ID,
		RelativePort: g.RelativePort}
	if g.HasPortGroup {
		d.PortGroup = &g.PortGroup
	}
	return d
}

// span is the part of a volume that read and write move.
type span struct{ offset, length string }

func (s *span) flags(c *cobra.Command) {
	c.Flags().StringVar(&s.offset, "offset", "0", "where on the volume to begin: bytes, or with KiB, MiB, GiB")
	c.Flags().StringVar(&s.length, "length", "", "how much to move (default: to the end)")
}

func (s *span) parse() (off, n int64, err error) {
	if off, err = daemon.ParseSize(s.offset); err != nil {
		return 0, 0, ui.Usage(err)
	}
	n = math.MaxInt64
	if s.length != "" {
		if n, err = daemon.ParseSize(s.length); err != nil {
			return 0, 0, ui.Usage(err)
		}
	}
	return off, n, nil
}

func read() *cobra.Command {
	var conn Connection
	var s span
	c := &cobra.Command{
		Use:     "read URL [FILE]",
		Short:   "Read a part of a volume to a file or standard output",
		Example: "  sluice read iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --length 4KiB | xxd | head",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			to := "-"
			if len(args) == 2 {
				to = args[1]
			}
			if err := onlyFirst(c, args); err != nil {
				return err
			}
			return Copy(c, &conn, args[0], to, s, false, false)
		},
	}
	conn.Flags(c)
	s.flags(c)
	return c
}

func write() *cobra.Command {
	var conn Connection
	var s span
	c := &cobra.Command{
		Use:     "write URL [FILE]",
		Short:   "Write a file or standard input to a part of a volume, and flush",
		Example: "  echo hello | sluice write iser://127.0.0.1/iqn.2026-11.io.sluice:default/0 --offset 1MiB",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			from := "-"
			if len(args) == 2 {
				from = args[1]
			}
			if err := onlyFirst(c, args); err != nil {
				return err
			}
			return Copy(c, &conn, from, args[0], s, false, false)
		},
	}
	conn.Flags(c)
	s.flags(c)
	return c
}

// CopyCommand is "cp" for volumes.
func CopyCommand() *cobra.Command {
	var conn Connection
	var sparse, quiet bool
	c := &cobra.Command{
		Use:   "cp SOURCE DEST",
		Short: "Copy between a file, standard input or output (-) and a volume",
		Long: `Copy between a file, a block device, standard input or output (-) and a volume, with progress, throughput and the SHA-256
of what was copied. What was written to a volume is flushed before the command ends well: it survives a loss of power.`,
		Example: `  sluice cp disk.img iser://192.0.2.1/iqn.2026-11.io.sluice:default/0
  sluice cp iser://192.0.2.1/iqn.2026-11.io.sluice:default/0 - | zstd > disk.zst
  sluice cp iscsi://a/iqn.x:one/0 iser://b/iqn.x:two/0`,
		Args: volumeArg(2),
		RunE: func(c *cobra.Command, args []string) error {
			return Copy(c, &conn, args[0], args[1], span{offset: "0"}, sparse, quiet)
		},
	}
	conn.Flags(c)
	c.Flags().BoolVar(&sparse, "sparse", false, "let runs of zeroes take no space on a volume")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress bar")
	return c
}

// Copy copies from one place to another; each is a volume's URL, a path or "-".
func Copy(c *cobra.Command, conn *Connection, from, to string, s span, sparse, quiet bool) error {
	off, limit, err := s.parse()
	if err != nil {
		return err
	}
	if !IsVolume(from) && !IsVolume(to) {
		return ui.Usagef("neither %s nor %s is a volume's URL (iser://... or iscsi://...)", from, to)
	}
	ini, closer, err := conn.Open()
	if err != nil {
		return err
	}
	res, err := doCopy(c, ini, from, to, off, limit, sparse, quiet)
	if err = errors.Join(err, closer()); err != nil {
		return explain(err)
	}
	if to == "-" { // standard output is the data's
		ui.Note(c.ErrOrStderr(), "%s in %.1f s, %s/s, sha256 %s", ui.Bytes(res.Bytes), res.Elapsed.Seconds(), ui.Bytes(int64(res.Rate())), res.SHA256)
		return nil
	}
	return ui.Print(c, res, func(t *ui.Table) {
		t.Row("copied", ui.Bytes(res.Bytes))
		t.Row("took", fmt.Sprintf("%.2f s", res.Elapsed.Seconds()))
		t.Row("rate", ui.Bytes(int64(res.Rate()))+"/s")
		t.Row("sha256", res.SHA256)
	})
}

// onlyFirst refuses a file in the place of the volume's URL, and a second volume: turned round, read would write and write
// would read.
func onlyFirst(c *cobra.Command, args []string) error {
	if !IsVolume(args[0]) {
		return ui.Usagef("%s is no volume's URL (iser://... or iscsi://...), which %s takes first: sluice %s", args[0], c.Name(), c.Use)
	}
	if len(args) > 1 && IsVolume(args[1]) {
		return ui.Usagef("%s moves data between a volume and a file; between two volumes: sluice cp SOURCE DEST", c.Name())
	}
	return nil
}

func doCopy(c *cobra.Command, ini *block.Initiator, from, to string, off, limit int64, sparse, quiet bool) (res Result, err error) {
	ctx := c.Context()
	var closers []io.Closer
	defer func() {
		for _, cl := range closers {
			err = errors.Join(err, cl.Close())
		}
	}()
	src, cl, err := openFrom(ctx, c, ini, from, off)
	if err != nil {
		return res, err
	}
	closers = append(closers, cl)
	if v, ok := src.(*volume); ok && v.base >= v.v.Geometry().Size {
		return res, ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("the volume ends at %d, and --offset is %d; nothing was read", v.v.Geometry().Size, v.base)}
	}
	dst, cl, err := openTo(ctx, c, ini, to, off, sparse)
	if err != nil {
		return res, err
	}
	closers = append(closers, cl)
	if v, ok := dst.(*volume); ok && src.size() >= 0 {
		if room := v.v.Geometry().Size - off; min(src.size(), limit) > room {
			return res, ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("%s has %s, the volume has room for %s; nothing was written", from, ui.Bytes(src.size()), ui.Bytes(max(room, 0)))}
		}
	}
	bar := newBar(c, min(src.size(), limit), quiet)
	defer func() { err = errors.Join(err, bar.Finish()) }()
	return copyAll(ctx, ini.Memory(), src, dst, limit, func(n int) { _ = bar.Add(n) }) // a bar that cannot draw must not end a copy
}

func openFrom(ctx context.Context, c *cobra.Command, ini *block.Initiator, arg string, off int64) (source, io.Closer, error) {
	if !IsVolume(arg) {
		return openSource(arg, c.InOrStdin())
	}
	v, err := ini.Open(ctx, arg)
	if err != nil {
		return nil, nil, err
	}
	return &volume{v: v, base: off, n: max(v.Geometry().Size-off, 0)}, v, nil
}

func openTo(ctx context.Context, c *cobra.Command, ini *block.Initiator, arg string, off int64, sparse bool) (sink, io.Closer, error) {
	if !IsVolume(arg) {
		return openSink(arg, c.OutOrStdout())
	}
	v, err := ini.Open(ctx, arg)
	if err != nil {
		return nil, nil, err
	}
	return &volume{v: v, base: off, zero: sparse}, v, nil
}

// newBar draws progress on a terminal only: a log wants one line, not a thousand.
func newBar(c *cobra.Command, n int64, quiet bool) *progressbar.ProgressBar {
	w, ok := c.ErrOrStderr().(*os.File)
	if ok {
		fi, err := w.Stat()
		ok = err == nil && fi.Mode()&os.ModeCharDevice != 0
	}
	out := c.ErrOrStderr()
	if quiet || !ok {
		out = io.Discard
	}
	return ui.Bar(out, n)
}
