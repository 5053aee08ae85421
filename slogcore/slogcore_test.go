package slogcore_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-storage/sluice/slogcore"
)

// written is what a JSON handler makes of one entry.
func written(t *testing.T, o slog.HandlerOptions, entry func(*zap.Logger), opts ...zap.Option) map[string]any {
	t.Helper()
	var b bytes.Buffer
	entry(slogcore.Logger(slog.NewJSONHandler(&b, &o)).WithOptions(opts...))
	if b.Len() == 0 {
		return nil
	}
	m := map[string]any{}
	if err := json.Unmarshal(b.Bytes(), &m); err != nil {
		t.Fatalf("%s: %v", &b, err)
	}
	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(m["time"])); err != nil || time.Since(at) > time.Hour {
		t.Errorf("the time of the entry is %v", m["time"])
	}
	delete(m, "time")
	return m
}

type point struct{ x, y int }

func (p point) MarshalLogObject(e zapcore.ObjectEncoder) error {
	e.AddInt("x", p.x)
	e.AddInt("y", p.y)
	return nil
}

func TestEveryKindOfFieldArrives(t *testing.T) {
	got := written(t, slog.HandlerOptions{}, func(z *zap.Logger) {
		z.Info("all", zap.String("s", "text"), zap.Int("i", -3), zap.Uint32("u", 7), zap.Uint64("w", 1<<40), zap.Bool("b", true), zap.Float64("f", 0.5),
			zap.Duration("d", time.Second), zap.Time("t", time.Unix(1, 0).UTC()), zap.Stringer("a", netip.MustParseAddr("192.0.2.1")), zap.Stringer("nil", (*netip.Addr)(nil)),
			zap.Error(errors.New("away")), zap.Error(nil), zap.Strings("l", []string{"p", "q"}), zap.Any("any", map[string]int{"k": 1}), zap.ByteString("raw", []byte("bytes")),
			zap.Object("o", point{1, 2}), zap.Inline(point{3, 4}), zap.Dict("dict", zap.Int("in", 1)), zap.Namespace("ns"), zap.Int("in", 2), zap.Namespace("deep"), zap.Int("in", 3))
	})
	want := map[string]any{"level": "INFO", "msg": "all", "s": "text", "i": -3.0, "u": 7.0, "w": float64(1 << 40), "b": true, "f": 0.5, "d": float64(time.Second),
		"t": "1970-01-01T00:00:01Z", "a": "192.0.2.1", "nil": "<nil>", "error": "away", "l": []any{"p", "q"}, "any": map[string]any{"k": 1.0}, "raw": "bytes",
		"o": map[string]any{"x": 1.0, "y": 2.0}, "x": 3.0, "y": 4.0, "dict": map[string]any{"in": 1.0}, "ns": map[string]any{"in": 2.0, "deep": map[string]any{"in": 3.0}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("it became\n%v, not\n%v", got, want)
	}
}

func TestWhatALoggerCarriesArrives(t *testing.T) {
	got := written(t, slog.HandlerOptions{AddSource: true}, func(z *zap.Logger) {
		z.Named("sluice").Named("nfs").With(zap.Int("a", 1), zap.Namespace("in"), zap.Int("b", 2)).With(zap.Int("c", 3)).Error("x", zap.Int("d", 4))
	}, zap.AddCaller(), zap.AddStacktrace(zap.ErrorLevel))
	in, _ := got["in"].(map[string]any)
	source, _ := got["source"].(map[string]any)
	if got["level"] != "ERROR" || got["a"] != 1.0 || in["b"] != 2.0 || in["c"] != 3.0 || in["d"] != 4.0 || in["logger"] != "sluice.nfs" {
		t.Errorf("it became %v", got)
	}
	if !strings.Contains(fmt.Sprint(in["stack"]), "TestWhatALoggerCarriesArrives") || !strings.HasSuffix(fmt.Sprint(source["file"]), "slogcore_test.go") {
		t.Errorf("the place is %v, the stack %v", source, in["stack"])
	}
}

func TestLevelsAreTheHandlers(t *testing.T) {
	for least, want := range map[slog.Level]string{slog.LevelDebug: "DEBUG INFO WARN ERROR ERROR+4", slog.LevelWarn: "WARN ERROR ERROR+4", slog.LevelError + 1: "ERROR+4"} {
		var got []string
		for _, l := range []zapcore.Level{zap.DebugLevel, zap.InfoLevel, zap.WarnLevel, zap.ErrorLevel, zap.DPanicLevel} {
			asked := false
			m := written(t, slog.HandlerOptions{Level: least}, func(z *zap.Logger) {
				if ce := z.Check(l, "x"); ce != nil {
					asked = true
					ce.Write()
				}
			})
			if asked != (m != nil) {
				t.Errorf("%v: asked for is %v, written %v", l, asked, m)
			}
			if m != nil {
				got = append(got, m["level"].(string))
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("from %v on: %s, not %s", least, s, want)
		}
	}
}

// A handler finds the error itself, and not its text.
func TestAnErrorStaysAnError(t *testing.T) {
	var found error
	look := slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, is := a.Value.Any().(error); is {
			found = err
		}
		return a
	}}
	written(t, look, func(z *zap.Logger) { z.Warn("x", zap.Error(&fs.PathError{Op: "open", Path: "p", Err: fs.ErrNotExist})) })
	if !errors.Is(found, fs.ErrNotExist) {
		t.Errorf("it finds %v", found)
	}
}

func TestALevelThatIsOffAllocatesNothing(t *testing.T) {
	z := slogcore.Logger(slog.NewJSONHandler(&bytes.Buffer{}, nil))
	if n := testing.AllocsPerRun(100, func() {
		if ce := z.Check(zap.DebugLevel, "x"); ce != nil {
			t.Error("it is on")
		}
	}); n != 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// A server's Options.Log is made of any handler: iscsi.Options{Log: slogcore.Logger(h)}.
func ExampleLogger() {
	h := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	z := slogcore.Logger(h)
	z.Warn("login refused", zap.String("initiator", "iqn.2026-11.example:host"), zap.Error(fs.ErrPermission))
	// Output: level=WARN msg="login refused" initiator=iqn.2026-11.example:host error="permission denied"
}
