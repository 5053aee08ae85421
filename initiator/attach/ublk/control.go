package ublk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoDriver says that the kernel has no ublk driver that this process may use.
var ErrNoDriver = errors.New("ublk: no driver: /dev/ublk-control is not there; load it with: modprobe ublk_drv (Linux 6.0 or later, root)")

// ControlError is a refusal of the driver's.
type ControlError struct {
	Op  string
	Dev uint32
	Err error
}

func (e *ControlError) Error() string {
	return fmt.Sprintf("ublk: %s device %d: %v", e.Op, e.Dev, e.Err)
}

// Unwrap is the driver's error number.
func (e *ControlError) Unwrap() error { return e.Err }

// control is the open /dev/ublk-control with a ring to command it. One goroutine uses it.
type control struct {
	f       *os.File
	r       *ring
	page    []byte // what commands point to
	encoded bool   // commands are numbered like ioctls
	resizes bool   // a device can get another size (Linux 6.16)
	lent    bool   // a command was given up, and may still use ring and page
}

func openControl() (*control, error) {
	f, err := os.OpenFile("/dev/ublk-control", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoDriver
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	c := &control{f: f}
	if c.r, err = newRing(4); err == nil {
		c.page, err = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	// The numbers like ioctls came with 6.4, and this question with 6.5; without it the old numbers are known.
	c.encoded = true
	c.encoded = c.do("ask features of", cmdGetFeatures, 0, featureSize, 0) == nil
	c.resizes = c.encoded && ne.Uint64(c.page)&flagUpdateSize != 0
	return c, nil
}

func (c *control) close() error {
	if c.lent {
		return nil
	}
	var errs []error
	if c.page != nil {
		errs = append(errs, unix.Munmap(c.page))
	}
	if c.r != nil {
		errs = append(errs, c.r.close())
	}
	return errors.Join(append(errs, c.f.Close())...)
}

func (c *control) op(nr uint32) uint32 {
	if c.encoded {
		return ioctl(nr, ctrlCmdSize)
	}
	return nr
}

// do runs one command; n bytes of page go with it, and come back.
func (c *control) do(what string, nr, dev uint32, n int, data uint64) error {
	e := c.r.next()
	if e == nil {
		return errors.New("ublk: the control ring is full")
	}
	e.opcode, e.fd, e.off = opURingCmd, int32(c.f.Fd()), uint64(c.op(nr))
	cmd := ctrlCmd{dev: dev, len: uint16(n), data: data}
	if n > 0 {
		cmd.addr = uint64(uintptr(unsafe.Pointer(&c.page[0])))
	}
	cmd.put(e.cmd[:])
	for {
		if err := c.r.enter(1); err != nil {
			return err
		}
		if q, ok := c.r.reap(); ok {
			runtime.KeepAlive(c.f)
			if q.res < 0 {
				return &ControlError{what, dev, unix.Errno(-q.res)}
			}
			return nil
		}
	}
}

// Available reports why no device can be made here; nil if one can.
func Available() error {
	c, err := openControl()
	if err != nil {
		return err
	}
	return c.close()
}

func (c *control) info(dev uint32) (info, error) {
	var i info
	clear(c.page[:infoSize])
	err := c.do("look at", cmdGetInfo, dev, infoSize, 0)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return i, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	i.parse(c.page)
	return i, err
}

// Delete removes what is left of a device whose process pid was killed. A device of another process, or none, is left as
// it is: numbers are given out again.
func Delete(index, pid int) (err error) {
	c, err := openControl()
	if errors.Is(err, ErrNoDriver) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	i, err := c.info(uint32(index))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || i.tag != ownTag(pid) {
		return err
	}
	if i.state == stateLive {
		if err := c.do("stop", cmdStop, uint32(index), 0, 0); err != nil {
			return err
		}
	}
	return c.remove(uint32(index))
}

// remove deletes a device that the driver has stopped, without waiting for those who still have it open: the driver frees its number
// when the last of them has closed it. Before Linux 6.9 the driver can only be asked to wait, which is given up after a while.
func (c *control) remove(dev uint32) error {
	if c.encoded {
		if err := c.do("delete", cmdDelAsync, dev, 0, 0); err == nil || errors.Is(err, unix.ENODEV) {
			return nil
		}
	}
	done := make(chan error, 1)
	go func() { done <- c.do("delete", cmdDel, dev, 0, 0) }()
	t := time.NewTimer(deleteLimit)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		c.lent = true // the kernel has the ring until the process ends, which ends the wait too
		return nil
	}
}
