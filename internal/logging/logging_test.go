package logging

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// What a package writes by slog looks to a reader as what the program writes by zap.
func TestAnEntryIsTheSameByZapAndBySlog(t *testing.T) {
	logger := func(b *bytes.Buffer) *zap.Logger {
		c := zap.NewProductionEncoderConfig()
		c.TimeKey = ""
		return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(c), zapcore.AddSync(b), zap.InfoLevel)).Named("sluice")
	}
	var byZap, bySlog bytes.Buffer
	z := logger(&byZap)
	err := errors.New("away")
	z.Warn("path is lost", zap.String("path", "iser://h"), zap.Error(err), zap.Duration("for", time.Second), zap.Uint32("pid", 7))
	z.Error("a lock was lost", zap.Uint64("start", 1))
	z.Debug("not shown")
	s := FromZap(logger(&bySlog))
	s.Warn("path is lost", slog.String("path", "iser://h"), slog.Any("error", err), slog.Duration("for", time.Second), slog.Any("pid", uint32(7)))
	s.Error("a lock was lost", slog.Uint64("start", 1))
	s.Debug("not shown")
	if byZap.String() != bySlog.String() {
		t.Errorf("by zap:\n%sby slog:\n%s", &byZap, &bySlog)
	}
}

func TestNoLoggerWritesNothing(*testing.T) {
	FromZap(nil).Error("nowhere")
	OrNone(nil).Error("nowhere")
}
