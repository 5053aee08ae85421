//go:build ceph && cgo && linux

package ceph

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// defaultMonTimeout bounds a monitor's answer: an election takes up to 15 s, and a connection to a monitor that is gone as long again.
	defaultMonTimeout = 30 * time.Second

	// maxObject bounds what Read takes into memory of one object: those of gateways are small.
	maxObject = 16 << 20

	// maxName bounds names of pools, images, objects and options: RADOS has 2048 for an object.
	maxName = 2048

	// maxPayload bounds what a notification may bring. OSDs take more; who notifies us needs less.
	maxPayload = 64 << 10

	// maxQueued bounds the notifications of a watch that wait for its handler. One that finds no place is not acknowledged, and its sender
	// hears so.
	maxQueued = 1024

	// maxLockers bounds the text of a lock's holders.
	maxLockers = 64 << 10
)

func (o *Options) check() error {
	for _, s := range []string{o.Conf, o.User, o.Keyring} {
		if err := checkName(s); err != nil {
			return err
		}
	}
	for k, v := range o.Settings {
		if err := errors.Join(checkName(k), checkName(v)); err != nil {
			return err
		}
	}
	return nil
}

// checkName refuses what C would take for another name.
func checkName(s string) error {
	if strings.IndexByte(s, 0) >= 0 || len(s) > maxName {
		return fmt.Errorf("ceph: a name of %d bytes; it has at most %d, and no zero byte", len(s), maxName)
	}
	return nil
}

// settings are all options to be set, in this order.
func (o *Options) settings() [][2]string {
	mon := o.MonTimeout
	if mon == 0 {
		mon = defaultMonTimeout
	}
	l := [][2]string{
		{"client_mount_timeout", seconds(mon)}, {"rados_mon_op_timeout", seconds(mon)}, {"rados_osd_op_timeout", seconds(o.OSDTimeout)},
	}
	if o.Keyring != "" {
		l = append(l, [2]string{"keyring", o.Keyring})
	}
	for k, v := range o.Settings {
		l = append(l, [2]string{k, v})
	}
	return l
}

// seconds is a duration as Ceph's options of floating point and of whole seconds both take it.
func seconds(d time.Duration) string { return fmt.Sprint(int64((d + time.Second - 1) / time.Second)) }

// user is the name as rados_create2 wants it.
func (o *Options) user() string {
	if o.User == "" {
		return "client.admin"
	}
	if strings.HasPrefix(o.User, "client.") {
		return o.User
	}
	return "client." + o.User
}

// blocklistForm turns the addresses of rados_getaddrs into those that a blocklist takes: without type and brackets, one each, all with the
// instance's nonce.
func blocklistForm(addrs string) []string {
	var l []string
	for a := range strings.SplitSeq(strings.Trim(addrs, "[]"), ",") {
		// "v2:10.0.0.1:0/4711", "v2:[fe80::1]:0/4711", "10.0.0.1:0/4711"
		if kind, rest, ok := strings.Cut(a, ":"); ok && (kind == "v1" || kind == "v2" || kind == "any") {
			a = rest
		}
		if a != "" && a != "-" {
			l = append(l, a)
		}
	}
	return l
}

// failed is the error of a call that returned rc, a negative errno, and nil for any other.
func failed(op, object string, rc int) error {
	if rc >= 0 {
		return nil
	}
	return &Error{Op: op, Object: object, Errno: unix.Errno(-rc)}
}
