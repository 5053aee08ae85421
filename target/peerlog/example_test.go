package peerlog_test

import (
	"fmt"
	"net"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/target/peerlog"
)

// Whatever a host does, it has a few lines of each kind in the log.
func Example() {
	core, lines := observer.New(zapcore.InfoLevel)
	logs := peerlog.New(zap.New(core), zap.New(core))
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1023}
	for range 1000 {
		logs.Of(from).Record(peerlog.Refusals, zap.WarnLevel, "login refused", zap.Stringer("remote", from))
	}
	logs.Of(from).Record(peerlog.Sessions, zap.InfoLevel, "session began")
	fmt.Println(lines.FilterMessage("login refused").Len(), "refusals,", lines.FilterMessage("session began").Len(), "session of", peerlog.Host(from))
	// Output:
	// 10 refusals, 1 session of 192.0.2.1
}
