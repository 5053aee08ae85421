package nbdlink

import (
	"errors"
	"fmt"
	"os"
)

// tries is how often a device is made again when not all of its connections have a receiver. Each try leaves idle workers
// behind for the next.
const tries = 6

// ErrUnheard says that the kernel never began to receive on all connections of a device.
var ErrUnheard = errors.New("nbdlink: the kernel does not receive on all connections of the device; try again, or with one connection")

// Open makes a device of a free index with conns connections, all of which the kernel receives on. pairs makes that many and
// returns the kernel's ends, which are closed here; it is called once a try, and the kernel ends the connections of a try
// that failed. c.Sockets is not looked at. Where the kernel's threads cannot be seen there will be one connection.
//
// The kernel starts its receivers on a work queue with a rescuer. Where new workers are slow to come (10 ms) the rescuer takes
// all that is queued, stays in the first receiver for as long as that connection lives, and the others never begin: replies
// on their connections are not read, and what waits for them waits for ever (Linux before 6.19). So the device has no size,
// and no receiver reads from it, until the receivers have been seen.
func Open(c Config, conns int, pairs func(n int) ([]*os.File, error)) (int, error) {
	if r, err := receivers("/proc", 0); err != nil {
		return 0, err
	} else if r.Hidden {
		conns = 1 // alone in its queue none can be kept from beginning
	}
	for range tries {
		index, err := openOnce(c, conns, pairs)
		if err != nil {
			return 0, err
		}
		ok := conns == 1
		if !ok {
			ok, err = awaitReceivers(func() (Receivers, error) { return receivers("/proc", index) }, conns)
		}
		if err == nil && ok {
			err = Resize(index, c.Size, c.Backend)
		}
		if err == nil && ok {
			return index, nil
		}
		if err = errors.Join(err, Disconnect(index)); err != nil {
			return 0, err
		}
	}
	return 0, fmt.Errorf("%w (%d)", ErrUnheard, conns)
}

// openOnce makes a device without a size.
func openOnce(c Config, conns int, pairs func(n int) ([]*os.File, error)) (index int, err error) {
	if c.Sockets, err = pairs(conns); err != nil {
		return 0, err
	}
	defer func() {
		for _, f := range c.Sockets {
			err = errors.Join(err, f.Close())
		}
	}()
	c.Size = 0
	return Connect(c)
}
