package iscsi

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sluice-storage/sluice/target/peerlog"
)

// recordSession writes into the record that a session began or ended. Who has proved a secret is always recorded.
func (c *conn) recordSession(ss *session, level zapcore.Level, msg string, f ...zap.Field) {
	switch {
	case ss.target == nil:
		c.plog.Record(peerlog.Discovery, level, msg, f...)
	case ss.user == "":
		c.plog.Record(peerlog.Sessions, level, msg, f...)
	default:
		c.plog.Always(level, msg, append(f, zap.String("user", ss.user))...)
	}
}
