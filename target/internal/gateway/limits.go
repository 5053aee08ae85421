package gateway

import "time"

// The times of detection. They are this gateway's own, from when it saw a thing itself.
const (
	// BeatEvery is the time between two heartbeats: two may be late or lost within a Lease.
	BeatEvery = 500 * time.Millisecond
	// LookEvery is the time between two looks at the others: what a takeover may begin late by.
	LookEvery = 250 * time.Millisecond
	// Lease is how long after the start of the last beat that was written an owner goes on. It is shorter than Lost, so that an owner that
	// is cut from the cluster answers its initiators before another takes over.
	Lease = 2 * time.Second
	// Lost is how long nothing is heard of an owner before others take over. With a look and the steps of a claim it is within the 5 s in which
	// I/O has to go on.
	Lost = 2500 * time.Millisecond
	// HandOver is how long an owner that beats may take to give up a volume that another was asked for; then it is fenced.
	HandOver = 2 * time.Second
	// DrainLimit is how long I/O under way may take to end when a volume is given up by its owner. What takes longer is fenced by the next one.
	DrainLimit = 1500 * time.Millisecond
	// AskedFor is how long initiators without a session at the owner have asked a standby before it takes over.
	AskedFor = 5 * time.Second
	// AskedGap is the longest time between two questions of one initiator that still asks: Linux's path checkers ask every 5 to 20 s.
	AskedGap = 25 * time.Second
	// Settle is how long a volume stays where it is before initiators that ask move it again. It doubles with each such move, up to MostSettle.
	Settle = 30 * time.Second
	// MostSettle bounds Settle as it doubles.
	MostSettle = time.Hour
	// SetGroups is as Settle, for SET TARGET PORT GROUPS: two hosts that each want another path must not keep a volume moving.
	SetGroups = 2 * time.Second
	// Stagger is how much later the second, third ... gateway begins to claim, in order of their names, so that one is mostly alone.
	Stagger = 300 * time.Millisecond
	// ClaimLimit is how long a claim may take. A lock of an instance that no record names, and that is seen for longer, is a dead claim's.
	ClaimLimit = 10 * time.Second
	// Again is the shortest time between two claims of a gateway for one volume.
	Again = 500 * time.Millisecond
	// RulesWait is how long PERSISTENT RESERVE OUT waits for the owner to apply it; then the owner is fenced.
	RulesWait = 3 * time.Second
	// RulesLook is the time between two looks at whether the owner has applied it.
	RulesLook = 100 * time.Millisecond
	// DefinitionsEvery is the time between two looks at the shared definitions.
	DefinitionsEvery = 2 * time.Second
)

// The blocklist.
const (
	// BlockFor is how long an entry of the blocklist stands without being renewed: longer than a process that was stopped is forgotten, and
	// than a weekend on which no gateway runs that would renew it.
	BlockFor = 7 * 24 * time.Hour
	// RenewEvery is the time after which the owner renews the entries of a volume.
	RenewEvery = 24 * time.Hour
	// Linger is how long an entry stays after the process of the instance is known to be dead: its host's kernel may still send what the
	// process has written, for as long as TCP repeats a segment (15 minutes on Linux).
	Linger = time.Hour
	// SweepEvery is the time between two looks at what of the blocklist is due.
	SweepEvery = time.Minute
)

const (
	// maxRecord bounds an object that is read: what a stranger wrote there is refused before it is decoded.
	maxRecord = 1 << 20
	// maxGateways bounds a group: each looks at all others, LookEvery.
	maxGateways = 16
	// maxName bounds the names of gateways and volumes, which are parts of object names.
	maxName = 100
	// maxAddresses bounds the addresses of one librados instance: one a protocol of the messenger.
	maxAddresses = 8
	// maxFenced bounds the blocklist entries of a volume that are not known to be needless yet.
	maxFenced = 512
	// maxPairs bounds the initiators and volumes of which a gateway says that they have a session with it; those beyond it count as without one.
	maxPairs = 4096
	// maxShut bounds the instances that a process says it has shut down; entries of older ones are kept until the process ends.
	maxShut = 64
	// maxAsking bounds the initiators without a session at the owner that a standby keeps apart.
	maxAsking = 1024
	// maxRules bounds the reservations of a volume: 1,024 registrations with the longest names.
	maxRules = 768 << 10
	// maxTries is how often a change of an object is begun again because another was faster.
	maxTries = 16
)
