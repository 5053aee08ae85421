package daemon

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// notify tells the service manager a state change; without one it does nothing. A manager that cannot be reached is
// worth a line, never a failure: the service works without being watched.
func (d *Daemon) notify(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		d.log.Warn("service manager not told", zap.String("state", state), zap.Error(err))
	}
}

// reloading is what systemd wants to hear when a reload begins (sd_notify(3)): READY=1 ends it.
func reloading() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return sd.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", sd.SdNotifyReloading, ts.Nano()/1000)
}

// watchdog feeds the service manager's watchdog while healthy says so, at half its period, until ctx ends.
func (d *Daemon) watchdog(ctx context.Context, healthy func(context.Context) error) {
	period, err := sd.SdWatchdogEnabled(false)
	if err != nil || period <= 0 {
		return
	}
	tick := time.NewTicker(period / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			hctx, cancel := context.WithTimeout(ctx, period/2)
			err := healthy(hctx)
			cancel()
			if err != nil {
				d.log.Error("not healthy; the watchdog is not fed", zap.Error(err))
				continue
			}
			d.notify(sd.SdNotifyWatchdog)
		}
	}
}

// inherited are listening sockets that the service manager opened for this process, by their address: a portal whose
// address is among them takes that socket, so that connections wait instead of being refused while the daemon restarts.
func inherited() (map[string]net.Listener, error) {
	ls, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("sockets of the service manager: %w", err)
	}
	m := map[string]net.Listener{}
	for _, l := range ls {
		if l != nil {
			m[l.Addr().String()] = l
		}
	}
	return m, nil
}
