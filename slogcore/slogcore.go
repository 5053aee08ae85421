// Package slogcore lets the servers, whose Options take a *zap.Logger, log to any slog.Handler: that of package log/slog, of a test, or of
// another logging library.
//
// Levels are those of both libraries; what zap has above error is above slog's error by four each. An error stays an error value, so that
// a handler can look at it with errors.As. Namespaces and objects become groups. The name of a logger is the attribute "logger", a stack
// the attribute "stack", and a caller the source of the record, as far as the logger notes them.
package slogcore

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Logger is a logger whose entries h handles. It may be used by any goroutine, as h may. A level that h has not enabled costs a call of
// its Enabled.
func Logger(h slog.Handler) *zap.Logger { return zap.New(Core(h)) }

// Core is Logger's core, for loggers with options of zap's.
func Core(h slog.Handler) zapcore.Core { return core{h} }

type core struct{ h slog.Handler }

// level is slog's for zap's: four steps of slog's are one of zap's, and 0 is information in both.
func level(l zapcore.Level) slog.Level { return 4 * slog.Level(l) }

// Enabled implements zapcore.LevelEnabler.
func (c core) Enabled(l zapcore.Level) bool { return c.h.Enabled(context.Background(), level(l)) }

// Check implements zapcore.Core.
func (c core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	h := c.h
	for {
		n := namespace(fields)
		if l := attrs(fields[:n]); len(l) > 0 {
			h = h.WithAttrs(l)
		}
		if n == len(fields) {
			return core{h}
		}
		h = h.WithGroup(fields[n].Key)
		fields = fields[n+1:]
	}
}

// Write implements zapcore.Core.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, level(e.Level), e.Message, e.Caller.PC)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(nested(fields)...)
	if e.Stack != "" {
		r.AddAttrs(slog.String("stack", e.Stack))
	}
	return c.h.Handle(context.Background(), r)
}

// Sync implements zapcore.Core: a handler has nothing of the kind.
func (c core) Sync() error { return nil }

// namespace is the place of the first namespace among fields, or behind the last.
func namespace(fields []zapcore.Field) int {
	n := slices.IndexFunc(fields, func(f zapcore.Field) bool { return f.Type == zapcore.NamespaceType })
	if n < 0 {
		return len(fields)
	}
	return n
}

// nested are fields as attributes; what stands behind a namespace is a group.
func nested(fields []zapcore.Field) []slog.Attr {
	n := namespace(fields)
	l := attrs(fields[:n])
	if n < len(fields) {
		l = append(l, slog.Attr{Key: fields[n].Key, Value: slog.GroupValue(nested(fields[n+1:])...)})
	}
	return l
}

func attrs(fields []zapcore.Field) []slog.Attr {
	l := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		if err, is := f.Interface.(error); is && f.Type == zapcore.ErrorType {
			l = append(l, slog.Any(f.Key, err)) // as text it could not be looked into
			continue
		}
		m := zapcore.NewMapObjectEncoder()
		f.AddTo(m)
		l = append(l, group(m.Fields)...)
	}
	return l
}

// group are the members of an object, in the order of their names.
func group(m map[string]any) []slog.Attr {
	var l []slog.Attr
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if o, is := m[k].(map[string]any); is {
			l = append(l, slog.Attr{Key: k, Value: slog.GroupValue(group(o)...)})
			continue
		}
		l = append(l, slog.Any(k, m[k]))
	}
	return l
}
