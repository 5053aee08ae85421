package stand

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/target/daemon"
)

// Daemon is a daemon in the process of the test. lib/proc has one that is a process.
type Daemon struct {
	*daemon.Daemon
	Lines *observer.ObservedLogs

	t    T
	over chan struct{}
	err  error
}

// NewDaemon starts a daemon of a configuration file. Its log is printed where the test fails.
func NewDaemon(t T, file string, level zapcore.Level) *Daemon {
	t.Helper()
	cfg, err := daemon.LoadServing(file, "", "")
	must(t, err)
	core, lines := observer.New(level)
	d := &Daemon{Lines: lines, t: t, over: make(chan struct{})}
	d.Daemon, err = daemon.New(cfg, zap.New(core))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		d.err = d.Run(ctx)
		close(d.over)
	}()
	t.Cleanup(func() {
		cancel()
		check(t, "the daemon", d.Wait())
		if t.Failed() {
			for _, l := range lines.All() {
				t.Log(l.Time.Format("05.000"), l.Level, l.Message, l.ContextMap())
			}
		}
	})
	return d
}

// Wait returns what the daemon ended with.
func (d *Daemon) Wait() error {
	d.t.Helper()
	select {
	case <-d.over:
		return d.err
	case <-time.After(patience):
		return fmt.Errorf("it has not ended within %v", patience)
	}
}

// Address waits until the daemon has logged a message, and returns the address that it names. With a key, only
// lines count in which that field is value.
func (d *Daemon) Address(message, key, value string) string {
	d.t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // a log has no event
		for _, l := range d.Lines.FilterMessage(message).All() {
			if m := l.ContextMap(); key == "" || fmt.Sprint(m[key]) == value {
				return fmt.Sprint(m["address"])
			}
		}
		if time.Now().After(limit) {
			d.t.Fatalf("the daemon does not say %q", message)
		}
	}
}

// WaitReady waits until the daemon says that it is ready.
func (d *Daemon) WaitReady() {
	d.t.Helper()
	for limit := time.Now().Add(patience); d.Ready() != nil; time.Sleep(time.Millisecond) { // a state has no event
		if time.Now().After(limit) {
			d.t.Fatalf("the daemon does not become ready: %v", d.Ready())
		}
	}
}
