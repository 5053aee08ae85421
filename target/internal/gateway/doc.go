// Package gateway decides which gateway of a group owns a volume, in RADOS alone: no other service is asked, and no two clocks are compared.
//
// A Gateway is a process of a group. It takes part with Join, beats in RADOS, and looks at the others' beats. A Volume is standby until
// nothing is heard of its owner, or it is asked for; then it claims the volume, and may be its owner. The one thing that keeps an earlier
// owner's late writes away is the blocklist of the cluster, in this order, which the types of claim.go enforce:
//
//	survey      read who owned it, by which librados instances, and who has the lock
//	blocklist   those instances, so that no OSD that knows of it takes their operations
//	map         the new instance waits for that OSD map: an OSD that it talks to from now on knows of the blocklist first
//	lock        the earlier owner's lock is broken, and the new instance takes it
//	raise       the record gets the new term, owner and instance, if nothing has changed it since the survey
//	open        the data, and the reservations that stand in RADOS by now
//
// An owner also stops by itself when its beat was not written for a Lease. That helps initiators and proves nothing: a process that was
// stopped does not run its timers.
//
// Every write is of a whole object at a known version, so one that was given up and lands late lands only where nothing has happened since.
package gateway
