package mem

// classes are the buffer sizes. Few and far apart: a slab is cut into one class, for good but where a provider has no room for
// more (recutLocked), so that what is free of a class can always be had, whatever else is taken.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

const (
	// MaxBuf is the largest single buffer in bytes; a longer transfer takes several (Quota.GetAll).
	MaxBuf = 1 << 20

	// SlabSize is one mapping of a pool's, which a provider registers as a whole: four of the largest buffers, small enough that
	// one slab a class is a modest minimum.
	SlabSize = 4 << 20
	slabSize = SlabSize

	// minPool gives every class one slab, so that no class can be crowded out by another for good.
	minPool = int64(len(classes)) * slabSize

	// maxCached bounds what one quota keeps to itself between I/Os: 32 requests of 128 KiB (class 256 KiB). Quotas
	// give it back as soon as another waits.
	maxCached = 8 << 20

	// apartSlab is a slab of a pool that one connection has for itself: one of the largest buffers. The pool begins with five of them
	// borrowed, so that a gigabyte has room for two hundred connections.
	apartSlab = 1 << 20
	minApart  = int64(len(classes)) * apartSlab
)
