package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/logging"
)

// checkExport refuses what means nothing for an export.
func (m *mounting) checkExport() error {
	switch {
	case m.mkfs != "" || m.fstype != "" || m.o.face != faceAuto:
		return ui.Usagef("an NFS export is no volume: --mkfs, --type and --face do not go with it")
	case m.o.conn.Credentials != "" || m.o.conn.Initiator != "":
		return ui.Usagef("an NFS export has neither CHAP credentials nor an initiator name")
	case len(m.opts) > 0 && !slices.Contains(m.flags, "-s"):
		return ui.Usagef("unknown mount option %s for an NFS export; known are ro, allow_other, local_locks, attr_timeout=, reconnect=, name=, crc=, provider=, exposure=, ack_timeout=", strings.Join(m.opts, ","))
	}
	if err := fuseUsable(); err != nil {
		return refused("an export is mounted by FUSE, and %w", err)
	}
	if os.Geteuid() == 0 {
		m.o.export.allowOther = true // what root mounts is there for all, as with mount(8)
	}
	return nil
}

// serveExport mounts an NFS export by FUSE and serves it until its owner ends it.
func (o *options) serveExport(ctx context.Context, url string, own *owner, ready func() error) (err error) {
	r := own.r
	set, err := o.conn.Fabric()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	log := logging.FromZap(logger()) // the helper's log: a lock that is lost is no call's error
	var fs *nfs.FS
	var name string
	err = o.byNearest(ctx, url, func() bool { return false }, func(url string) (err error) {
		fs, name, err = nfs.Mount(ctx, url, nfs.Options{Provider: set.Device, Log: log})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	if name != "." {
		return refused("%s is no directory of the server", url)
	}
	t, err := nfs.ParseURL(url)
	if err != nil {
		return err
	}
	f := fusedir.Options{Fixed: t.Fixed, Source: r.URL, ReadOnly: o.readOnly, AllowOther: o.export.allowOther, AttrTimeout: o.export.attrs, EntryTimeout: o.export.attrs, Limit: max(o.conn.Reconnect, 0), State: stateDir(), Log: log}
	if o.export.localLocks {
		f.Locks = fusedir.LocksLocal
	}
	m, err := fusedir.Mount(ctx, r.Mount, fs, f)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "sluice:", m.Locks()) // the helper's log
	if err := ready(); err != nil {
		return errors.Join(err, m.Unmount(true))
	}
	return own.hold(&dirFace{m, r.Mount})
}

// dirFace is an export as a directory, by FUSE.
type dirFace struct {
	m    *fusedir.Mounted
	path string
}

func (f *dirFace) users() error {
	if f.m.Opens() > 0 {
		return refused("%s is busy: files there are open", f.path)
	}
	return nil
}

func (f *dirFace) clean() bool                      { return false }
func (f *dirFace) settle(ctx context.Context) error { return f.m.Sync(ctx) }
func (f *dirFace) cut()                             { f.m.Abort() }
func (f *dirFace) gone() <-chan struct{}            { return f.m.Done() }

func (f *dirFace) remove(force bool) error {
	err := f.m.Unmount(force)
	if errors.Is(err, fusemount.ErrBusy) {
		return &staysError{refused("%s is busy: %w", f.path, err)}
	}
	return err
}
