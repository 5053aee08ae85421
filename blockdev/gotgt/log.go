package gotgt

import (
	"io"

	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// RouteLogs sends what gotgt logs to log. gotgt logs to one global logger of the process, so the last call counts.
func RouteLogs(log *zap.Logger) {
	std := logrus.StandardLogger()
	std.SetOutput(io.Discard)
	std.ReplaceHooks(logrus.LevelHooks{})
	std.AddHook(zapHook{log})
	std.SetLevel(logrusLevel(log.Level()))
}

type zapHook struct{ log *zap.Logger }

func (zapHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h zapHook) Fire(e *logrus.Entry) error {
	entry := h.log.Check(zapLevel(e.Level), e.Message)
	if entry == nil {
		return nil
	}
	fields := make([]zap.Field, 0, len(e.Data)+1)
	fields = append(fields, zap.String("from", "gotgt"))
	for k, v := range e.Data {
		fields = append(fields, zap.Any(k, v))
	}
	entry.Write(fields...)
	return nil
}

// zapLevel never answers Fatal or Panic: logrus ends the process by itself after its hooks, zap would before them.
func zapLevel(l logrus.Level) zapcore.Level {
	switch l {
	case logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel:
		return zapcore.ErrorLevel
	case logrus.WarnLevel:
		return zapcore.WarnLevel
	case logrus.InfoLevel:
		return zapcore.InfoLevel
	}
	return zapcore.DebugLevel
}

func logrusLevel(l zapcore.Level) logrus.Level {
	switch {
	case l <= zapcore.DebugLevel:
		return logrus.DebugLevel
	case l == zapcore.InfoLevel:
		return logrus.InfoLevel
	case l == zapcore.WarnLevel:
		return logrus.WarnLevel
	}
	return logrus.ErrorLevel
}
