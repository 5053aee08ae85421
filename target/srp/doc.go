// Package srp is the target of the SCSI RDMA Protocol: logins over RDMA/CM, and I_T nexuses of several RDMA channels, over any transport.Device.
// It owns channels, credits and the movement of data; what a command does is target/scsi's.
//
//	srv, err := srp.NewServer(srp.Options{Memory: pool, Find: find, Log: log}) // find says what each login gets
//	l, err := rnic.Listen(ctx, "0.0.0.0:5555")
//	go srv.Serve(ctx, rnic, l, func() uint16 { return 2 })
//	...
//	err = srv.Close(ctx) // ends what runs, logs out, then cuts
//
// SRP has no discovery and no authentication. An initiator names the target port that it wants by an identifier, TargetPort, which an operator gives
// it; by whom it is, it is believed. So a target that asks for a proof is not to be found.
//
// # Who runs what
//
//  1. Each channel has one owner goroutine (internal/owner): it receives, checks and hands commands to Nexus.Execute, and performs writes into the
//     page cache itself. It never waits for a disk.
//  2. Channels of one initiator port and one target port are one session: they share a scsi.Nexus, and with it reservations, task sets and memory.
//     Each has a queue pair, an engine, credits and tags of its own.
//  3. channel.mu guards the tasks, the credits and the queue of one channel. It is never held while calling into target/scsi, nor is that of
//     another channel.
//  4. A channel ends by kill from any goroutine, or by leave, which says SRP_T_LOGOUT first. Its owner sees it, ends every move and has the device
//     server abort the channel's tasks. The session ends with its last channel.
//
// # Credits
//
// A receive is posted for each request that an initiator may send, and some for what needs no credit. A request keeps its receive until its response
// is queued, since descriptors and immediate data are read where they lie. The receive is posted again before that response leaves, and the response
// returns the credit. What ends without a response returns it with the next one, or with SRP_CRED_REQ.
package srp
