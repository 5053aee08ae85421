// Package iscsi is the iSCSI target: discovery and normal sessions (RFC 7143) over TCP and, iSER-assisted, over any
// transport.Device (RFC 7145). It owns sessions, numbers and negotiation; what a command does is target/scsi's.
//
// One listening port serves both transports: the first byte of a connection tells an MPA request, which goes to the
// software RNIC, from an iSCSI login.
//
//	srv, err := iscsi.NewServer(iscsi.Options{Memory: pool, Device: rnic, Log: log})
//	err = srv.AddTarget(iscsi.Target{Name: name, SCSI: scsiTarget})
//	l, err := net.Listen("tcp", "127.0.0.1:3260")
//	go srv.Serve(ctx, l, iscsi.Portal{Group: 1})
//	...
//	err = srv.Close(ctx) // asks initiators to leave, waits for their tasks, then cuts
//
// # Who runs what
//
//  1. Each connection has one owner goroutine. It receives, checks and dispatches, and never waits for a disk: a
//     command is handed to Nexus.Execute and continues on whatever goroutine its device requests end. Over iSER it
//     performs writes into the page cache itself; another goroutine takes its place if one blocks (internal/owner, iser_owner.go).
//  2. Below the session core are two datamovers (RFC 7145 section 3.1), tcpDatamover and iserDatamover. They move data and send PDUs; any goroutine may ask
//     them to. What the owner starts is collected (corked) and leaves in one writev or Post when it runs out of input.
//  3. conn.mu guards numbers, tasks and the transmit queue of one connection. It is never held while calling into
//     target/scsi, and no lock is shared between connections on the data path.
//  4. A connection ends by conn.kill from any goroutine: the socket or queue pair closes, the owner sees it, ends
//     every move, closes the nexus, and when the last command is gone the session is (conn.finish).
package iscsi
