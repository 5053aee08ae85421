// Package logging joins the two ways to log: packages for other programs take a *slog.Logger, and the programs here write
// by zap.
package logging

import (
	"log/slog"
	"math"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
)

// FromZap is a logger for packages that take a *slog.Logger. Its entries are the ones that z would write; nil writes nothing.
func FromZap(z *zap.Logger) *slog.Logger {
	if z == nil {
		return OrNone(nil)
	}
	// Stacks are zap's own option; the handler would add them to every error.
	return slog.New(zapslog.NewHandler(z.Core(), zapslog.WithName(z.Name()), zapslog.AddStacktraceAt(slog.Level(math.MaxInt))))
}

// OrNone is l, or a logger that writes nothing where l is nil.
func OrNone(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
