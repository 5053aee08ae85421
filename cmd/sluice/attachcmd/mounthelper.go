package attachcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/cmd/sluice/attachcmd/sluicetab"
	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// mount(8)'s exit codes, which its helpers share.
const (
	mountUsage  = 1
	mountFailed = 32
)

// MultiCall runs the helpers of mount(8) and umount(8) when the program was called by their names, which are links to it;
// ok is false otherwise. The returned code is the process's.
func MultiCall(ctx context.Context, args []string, stderr io.Writer) (code int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	name := filepath.Base(args[0])
	if os.Getenv("PATH") == "" { // mount(8) and umount(8) hand their helpers an empty environment
		if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
			fmt.Fprintln(stderr, err)
		}
	}
	var err error
	switch {
	case name == "mount.sluice" || strings.HasPrefix(name, "mount.sluice."):
		err = mountHelper(ctx, name, args[1:], stderr)
	case name == "umount.sluice" || strings.HasPrefix(name, "umount.sluice."):
		err = umountHelper(ctx, args[1:])
	default:
		return 0, false
	}
	if err == nil {
		return 0, true
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	var e ui.ExitError
	if errors.As(err, &e) && e.Code == ui.CodeUsage {
		return mountUsage, true
	}
	return mountFailed, true
}

const mountSyntax = "mount.sluice URL DIR [-sfnv] [-N namespace] [-o options] [-t type.subtype]"

// mountArgs is the command line that mount(8) gives its helpers ("External helpers" in its manual page).
type mountArgs struct {
	m       mounting
	fake    bool
	verbose bool
	remount bool
}

func mountHelper(ctx context.Context, name string, args []string, stderr io.Writer) error {
	a, err := parseMountArgs(name, args)
	if err != nil {
		return err
	}
	a.m.say = func(format string, v ...any) {
		if a.verbose {
			fmt.Fprintf(stderr, name+": "+format+"\n", v...)
		}
	}
	switch {
	case a.remount:
		return a.doRemount(ctx)
	case a.fake:
		_, err := a.m.check()
		return err
	}
	_, err = a.m.run(ctx)
	return err
}

func parseMountArgs(name string, args []string) (*mountArgs, error) {
	a := &mountArgs{}
	a.m.o.conn.CRC, a.m.o.face = "on", faceAuto
	_, a.m.fstype, _ = strings.Cut(name, "mount.sluice.")
	var words []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "" || arg[0] != '-' || arg == "-" {
			words = append(words, arg)
			continue
		}
		for j := 1; j < len(arg); j++ {
			switch arg[j] {
			case 's': // sloppy: what the file system does not know is its own affair here too
				a.m.flags = append(a.m.flags, "-s")
			case 'n':
				a.m.flags = append(a.m.flags, "-n")
			case 'f':
				a.fake = true
			case 'v':
				a.verbose = true
			case 'o', 't', 'N':
				value := arg[j+1:]
				if value == "" {
					if i++; i == len(args) {
						return nil, ui.Usagef("-%c wants a value; usage: %s", arg[j], mountSyntax)
					}
					value = args[i]
				}
				if err := a.valued(arg[j], value); err != nil {
					return nil, err
				}
				j = len(arg)
			default:
				return nil, ui.Usagef("unknown flag -%c; usage: %s", arg[j], mountSyntax)
			}
		}
	}
	if len(words) != 2 {
		return nil, ui.Usagef("%d arguments; usage: %s", len(words), mountSyntax)
	}
	a.m.url, a.m.where = restoreURL(words[0]), words[1]
	return a, nil
}

func (a *mountArgs) valued(flag byte, value string) error {
	switch flag {
	case 't':
		if _, sub, ok := strings.Cut(value, "."); ok {
			a.m.fstype = sub
		}
	case 'N':
		a.m.flags = append(a.m.flags, "-N", value)
	case 'o':
		for _, o := range strings.Split(value, ",") {
			if err := a.option(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// foreign are words of fstab that concern mount(8) and service managers and mean nothing to a file system. mount(8) keeps
// most of them back; a user who calls the helper by hand does not.
var foreign = []string{"", "auto", "noauto", "defaults", "nofail", "_netdev", "user", "nouser", "users", "owner", "group", "nogroup", "rw"}

// option takes one mount option: ours are kept, the file system's passed on.
func (a *mountArgs) option(o string) error {
	key, value, has := strings.Cut(o, "=")
	if slices.Contains(foreign, o) || strings.HasPrefix(key, "x-") || key == "comment" {
		return nil
	}
	ours := map[string]*string{"fstype": &a.m.fstype, "name": &a.m.o.name, "credentials": &a.m.o.conn.Credentials, "crc": &a.m.o.conn.CRC, "provider": &a.m.o.conn.Provider,
		"exposure": &a.m.o.conn.Exposure, "initiator": &a.m.o.conn.Initiator}
	if p := ours[key]; p != nil {
		if value == "" {
			return ui.Usagef("option %s= wants a value", key)
		}
		*p = value
		return nil
	}
	switch key {
	case "ro":
		a.m.o.readOnly = true
	case "remount":
		a.remount = true
	case "allow_other":
		a.m.o.export.allowOther = true
	case "local_locks":
		a.m.o.export.localLocks = true
	case "attr_timeout":
		d, err := time.ParseDuration(value)
		if err != nil {
			return ui.Usagef("option attr_timeout=%s is no duration; 500ms and 10s are", value)
		}
		a.m.o.export.attrs = d
	case "ack_timeout":
		d, err := sluicetab.AckTimeout(value)
		if err != nil {
			return ui.Usage(err)
		}
		a.m.o.conn.AckTimeout = d
	case "as":
		face, ok := sluicetab.Face(value)
		if !ok || face == faceSocket {
			return ui.Usagef("option as=%s is none of auto, nbd, fuse, ublk", value)
		}
		a.m.o.face = face
	case "reconnect":
		d, err := sluicetab.Limit(value)
		if err != nil {
			return ui.Usage(err)
		}
		a.m.o.conn.Reconnect = d
	default:
		if has && value == "" {
			return ui.Usagef("option %s= wants a value", key)
		}
		a.m.opts = append(a.m.opts, o)
	}
	return nil
}

// restoreURL gives a scheme its second slash back: systemd's generator for fstab takes a source with a slash for a path,
// and makes one of two.
func restoreURL(s string) string {
	out := strings.Split(s, ",")
	for i, u := range out {
		scheme, rest, ok := strings.Cut(u, ":/")
		if ok && !strings.HasPrefix(rest, "/") && slices.Contains([]string{"iser", "iscsi", "nfs", "nfs+rdma"}, scheme) {
			out[i] = scheme + "://" + rest
		}
	}
	return strings.Join(out, ",")
}

// doRemount changes the options of a mount of ours.
func (a *mountArgs) doRemount(ctx context.Context) error {
	r, err := find(a.m.where)
	if err != nil {
		return ui.ExitError{Code: ui.CodeRefused, Err: err}
	}
	opts := append([]string{"remount"}, a.m.opts...)
	if a.m.o.readOnly {
		opts = append(opts, "ro")
	} else {
		opts = append(opts, "rw")
	}
	if a.fake {
		return nil
	}
	return tool(ctx, "mount", append(a.m.flags, "-i", "-o", strings.Join(opts, ","), "--", r.Mount)...)
}

const umountSyntax = "umount.sluice DIR [-flnrv] [-N namespace] [-t type.subtype]"

// umountHelper is what umount(8) calls for a mount that carries helper=sluice.
func umountHelper(ctx context.Context, args []string) error {
	where, lazy, flags, err := parseUmountArgs(args)
	if err != nil {
		return err
	}
	r, err := find(where)
	if err != nil {
		// Not ours, or no longer: the mount itself can still be taken away.
		return tool(ctx, "umount", append(append([]string{"-i"}, flags...), "--", where)...)
	}
	return r.unmount(ctx, lazy, flags)
}

func parseUmountArgs(args []string) (where string, lazy bool, flags []string, err error) {
	var words []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "" || arg[0] != '-' {
			words = append(words, arg)
			continue
		}
		for j := 1; j < len(arg); j++ {
			switch arg[j] {
			case 'l':
				lazy = true
			case 'f', 'n', 'r':
				flags = append(flags, "-"+arg[j:j+1])
			case 'v':
			case 'N', 't':
				value := arg[j+1:]
				if value == "" {
					if i++; i == len(args) {
						return "", false, nil, ui.Usagef("-%c wants a value; usage: %s", arg[j], umountSyntax)
					}
					value = args[i]
				}
				if arg[j] == 'N' {
					flags = append(flags, "-N", value)
				}
				j = len(arg)
			default:
				return "", false, nil, ui.Usagef("unknown flag -%c; usage: %s", arg[j], umountSyntax)
			}
		}
	}
	if len(words) != 1 {
		return "", false, nil, ui.Usagef("%d arguments; usage: %s", len(words), umountSyntax)
	}
	return words[0], lazy, flags, nil
}
