package e2e

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// What happens to the paths of a volume can be read afterwards, from the volume and in the initiator's log: which path was
// lost, when and why, and that another did the work.
func TestPathsTellTheirStory(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	a, b := newRelay(t, s.Portal("127.0.0.1", 1)), newRelay(t, s.Portal("127.0.0.1", 1))
	var log bytes.Buffer
	sink := zapcore.Lock(zapcore.AddSync(&log))
	logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), sink, zap.InfoLevel))
	v := open(t, host(t, block.Options{Log: logging.FromZap(logger)}, iwarp.Options{}), url("iser", a.addr()), url("iscsi", b.addr()))
	began := time.Now()
	a.cut(true)
	waitPaths(t, v, 1)
	const n = 20
	for range n {
		_, err := v.WriteAt(make([]byte, 512), 0)
		must(t, err)
	}
	down, up := v.Paths()[0], v.Paths()[1]
	if down.Up || down.Err == nil || down.Losses != 1 || down.Logins != 1 || down.Since.Before(began) {
		t.Errorf("the path that is down: %+v", down)
	}
	if !up.Up || up.Err != nil || up.Losses != 0 || up.Logins != 1 || up.Commands < n || !up.Since.Before(began) {
		t.Errorf("the path that is up: %+v", up)
	}
	a.mend()
	waitPaths(t, v, 2)
	if p := v.Paths()[0]; p.Logins != 2 || p.Losses != 1 || p.Commands < down.Commands {
		t.Errorf("the path that came back: %+v", p)
	}
	var told []string
	for _, e := range v.Events() {
		if e.Path == v.Paths()[0].URL {
			told = append(told, e.Text)
			if (e.Text == "path is lost") != (e.Err != nil) || e.Time.IsZero() {
				t.Errorf("%+v", e)
			}
		}
	}
	if got := strings.Join(told, ", "); got != "path is up, path is lost, path is up" {
		t.Errorf("the path's story: %s", got)
	}
	must(t, v.Close())
	must(t, sink.Sync())
	if out := log.String(); strings.Count(out, "path is lost") != 1 || !strings.Contains(out, a.addr()) {
		t.Errorf("the log: %s", out)
	}
}
