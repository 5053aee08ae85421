package verbs

import (
	"fmt"
	"strings"
)

// ExposureError says that adapters are left alone: to read from a peer through them, as every target does, would open all registered
// memory to that peer's writes, and Options.WholeSlab does not allow it.
type ExposureError struct{ Devices []string }

func (e *ExposureError) Error() string {
	which, it := "the adapter "+e.Devices[0]+" is", "it reads"
	if len(e.Devices) > 1 {
		which, it = "the adapters "+strings.Join(e.Devices, ", ")+" are", "they read"
	}
	return fmt.Sprintf("verbs: %s not used: while %s from a peer, all registered memory would be open to that peer's writes. Where all peers are trusted with that, set the "+
		"exposure to whole-slab (exposure: in the configuration, --exposure or ?exposure= of a tool); software iWARP works with the same peers and exposes nothing", which, it)
}

// shuts reports whether an adapter is left alone.
func (o *Options) shuts(a *deviceAttr) bool { return traitOf(a, false).sinks && !o.WholeSlab }

// What can be reached of this side's memory, in a few words; transport.Path and Info use the same.
const (
	exposeNothing = "nothing"
	exposeWindows = "a window for each I/O"
	exposeSlabs   = "all registered memory (whole slabs, as configured)"
	exposeSinks   = "all registered memory, for writing (this adapter's Reads need it; as configured)"

	shutTarget = "not used: its Reads would open all registered memory to writes"
	shutSlabs  = "refused: the adapter has no memory windows, and whole slabs are not allowed"
)

// asTarget is what the peer of a target reaches through an adapter, asInitiator that of an initiator; used says whether it gets so far.
func (o *Options) asTarget(t trait) (words string, used bool) {
	switch {
	case !t.sinks:
		return exposeNothing, true
	case o.WholeSlab:
		return exposeSinks, true
	}
	return shutTarget, false
}

func (o *Options) asInitiator(t trait) (words string, used bool) {
	switch {
	case t.sinks && !o.WholeSlab:
		return shutTarget, false
	case t.windows && t.sinks:
		return exposeSinks, true
	case t.windows && t.exact:
		return exposeWindows, true
	case t.windows:
		return exposeWindows + "; the adapter checks the bounds of the slab below it only", true
	case o.WholeSlab:
		return exposeSlabs, true
	}
	return shutSlabs, false
}
