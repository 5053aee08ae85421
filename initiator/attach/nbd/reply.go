package nbd

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/sockio"
)

// encode appends the reply of a finished request.
func (sl *slot) encode(out []unix.Iovec) []unix.Iovec {
	no := errnoOf(sl.err)
	h := sl.head[:0]
	if !sl.c.structured {
		h = be.AppendUint32(h, magicSimple)
		h = be.AppendUint32(h, no)
		h = be.AppendUint64(h, sl.cookie)
		return sl.payload(sockio.Append(out, h), no)
	}
	chunk := func(kind uint16, n int) {
		h = be.AppendUint32(h, magicStructured)
		h = be.AppendUint16(h, chunkDone)
		h = be.AppendUint16(h, kind)
		h = be.AppendUint64(h, sl.cookie)
		h = be.AppendUint32(h, uint32(n))
	}
	switch {
	case no != 0:
		chunk(chunkError, 6)
		h = be.AppendUint32(h, no)
		h = be.AppendUint16(h, 0)
	case sl.cmd == cmdRead:
		chunk(chunkOffsetData, 8+int(sl.req.Length))
		h = be.AppendUint64(h, sl.off)
	case sl.cmd == cmdBlockStatus:
		ext := sl.req.Extents
		if sl.flags&flagReqOne != 0 && len(ext) > 1 {
			ext = ext[:1]
		}
		// Descriptors have no offset: each begins where the one before ends, and none can follow one that is cut.
		if i := slices.IndexFunc(ext, func(e blockdev.Extent) bool { return e.Length > maxExtent }); i >= 0 {
			ext = ext[:i+1]
		}
		chunk(chunkBlockStatus, 4+8*len(ext))
		h = be.AppendUint32(h, contextID)
		for _, e := range ext {
			h = be.AppendUint32(h, uint32(min(e.Length, maxExtent)))
			state := uint32(0)
			if !e.Mapped {
				state = stateHole
				if sl.c.s.vol.Geometry().DiscardZeroes { // otherwise it may read as anything (SBC-3 section 4.7.4.4, LBPRZ)
					state |= stateZero
				}
			}
			h = be.AppendUint32(h, state)
		}
	default:
		chunk(chunkNone, 0)
	}
	return sl.payload(sockio.Append(out, h), no)
}

func (sl *slot) payload(out []unix.Iovec, no uint32) []unix.Iovec {
	if no == 0 && sl.cmd == cmdRead {
		for _, s := range sl.spans {
			out = sockio.Append(out, s.Bytes())
		}
	}
	return out
}
