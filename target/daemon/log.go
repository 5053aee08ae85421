package daemon

import (
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
