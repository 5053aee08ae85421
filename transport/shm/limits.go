package shm

import "time"

const (
	maxPrivate  = 508                     // bytes of private data; what iWARP has, so that no upper protocol depends on more
	maxReads    = 128                     // Reads outstanding each way, as with iWARP; each inbound one costs 1 KiB here
	maxSGE      = 16                      // a 16 MiB I/O in buffers of 1 MiB
	maxMessage  = 1 << 30                 // bytes of one message; the receiver copies it in one go, so that far less is sensible
	maxQueue    = 1 << 16                 // work requests or receives of a QP; a bug above, not a workload
	maxWindows  = maxQueue                // windows of a QP
	maxAddress  = 107                     // bytes of a socket's path (unix(7), sun_path without its end)
	maxDetail   = 255                     // bytes of the sentence that an end brings along
	inlineMax   = 512                     // payload up to this travels in the ring: it is complete when it is there, and a copy of it costs less than an answer
	slotSize    = 64                      // of a descriptor; a processor's cache line
	ringSlots   = 2048                    // of our ring: 128 KiB, five hundred small requests with their payload
	minSlots    = 64                      // of a peer's ring: it must hold the longest record a few times
	maxSlots    = 1 << 16                 // of a peer's ring: 4 MiB of addresses
	maxSlabs    = 1 << placeBits          // slabs that one connection may have been shown, each way; each is a mapping of this process
	maxMappings = 1 << 14                 // slabs that this process maps for all of its peers: at vm.max_map_count, 65,530 as a rule, Go has no memory any more
	maxSlab     = 1 << 30                 // bytes of one
	maxMapped   = 16 << 30                // bytes of all that a peer shares: addresses, no memory
	maxControl  = 64                      // messages that are taken off the socket at a time, so that a flood cannot hold the owner
	maxBehind   = 2*maxSlabs + maxControl // messages that may lie before the one of a slab that a record names: as many taken back, and as many shown
	mailEvery   = 256                     // passes between two looks at the socket: one costs a system call
	passRecords = 64                      // records of one pass over the ring, so that a stream of Writes cannot hold its owner
	passBytes   = 4 << 20                 // likewise, bytes copied
	ackBytes    = 256 << 10               // bytes copied after which the sender is told within a pass: it may use that memory again
	maxGroups   = 1 << 16                 // NGROUPS_MAX of Linux
	maxPending  = 256                     // connections of a listener that have not sent a whole request; the oldest gives way

	defaultSends = 256 // work requests, when QPOptions says nothing
	defaultRecvs = 256 // receives, likewise
)

const (
	requestTimeout = 10 * time.Second // for a dialler's request; it is one message
	replyTimeout   = 30 * time.Second // for a listener's reply: the upper protocol may wait for memory
	spinTime       = 20 * time.Microsecond
)
