package iscsi

// SNLess reports whether a comes before b in the serial numbers of RFC 1982, which CmdSN, StatSN and DataSN are
// (RFC 7143 section 4.2.2).
func SNLess(a, b uint32) bool { return int32(a-b) < 0 }

// SNLessEq reports whether a is b or comes before it.
func SNLessEq(a, b uint32) bool { return int32(a-b) <= 0 }

// InWindow reports whether sn lies in [first, last], the command window of RFC 7143 section 4.2.2.1; last may be
// first-1, which closes the window.
func InWindow(sn, first, last uint32) bool { return SNLessEq(first, sn) && SNLessEq(sn, last) }
