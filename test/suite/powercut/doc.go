// Package powercut takes the power from a volume of a running sluiced, again and again, while two initiators of Sluice's, one a
// transport, and libiscsi as a stranger write to it. What FUA or a flush acknowledged is there afterwards, and no flush claims
// what was lost without having failed once.
//
// The volume lies on test/lib/faultfs, which forgets what no fsync has made durable; the daemon is killed, and believes that it is
// another boot.
package powercut
