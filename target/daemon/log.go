package daemon

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger makes the daemon's logger on standard error and the level that can change while it runs.
func NewLogger(c LogConfig) (*zap.Logger, zap.AtomicLevel, error) {
	level, err := zap.ParseAtomicLevel(c.Level)
	if err != nil {
		return nil, level, err
	}
	zc := zap.NewProductionConfig()
	zc.Level = level
	zc.Sampling = nil // quotas of a peer are kept where the peer is known
	zc.DisableStacktrace = true
	zc.DisableCaller = true
	if c.Format == "console" {
		zc.Encoding = "console"
		zc.EncoderConfig = zap.NewDevelopmentEncoderConfig()
		zc.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	} else {
		zc.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	}
	log, err := zc.Build()
	return log, level, err
}

// auditLogger is where logins, refusals and administrative changes go: a file of JSON lines that only the daemon's user can
// read, or, under the name audit, where everything goes. The file is closed by close.
func auditLogger(c LogConfig, log *zap.Logger) (_ *zap.Logger, done func() error, err error) {
	if c.Audit == "" {
		return log.Named("audit"), func() error { return nil }, nil
	}
	f, err := os.OpenFile(c.Audit, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("log.audit: %w", err)
	}
	ec := zap.NewProductionEncoderConfig()
	ec.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(ec), zapcore.Lock(f), zapcore.InfoLevel)
	return zap.New(core).Named("audit"), f.Close, nil
}

// ToggleDebug switches between debug and the configured level.
func ToggleDebug(level zap.AtomicLevel, configured string) {
	if level.Level() != zapcore.DebugLevel {
		level.SetLevel(zapcore.DebugLevel)
		return
	}
	if l, err := zapcore.ParseLevel(configured); err == nil {
		level.SetLevel(l)
	}
}
