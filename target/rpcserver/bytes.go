package rpcserver

import "sync"

// Plain memory for streams, in four sizes. A socket needs no registered memory, and sync.Pool has no lock that
// connections would share.
var byteClasses = [...]int{8 << 10, 68 << 10, 264 << 10, MaxRecord}

var bytePools [len(byteClasses)]sync.Pool

// bytesFor is how many bytes getBytes(n) takes.
func bytesFor(n int) int {
	for _, size := range byteClasses {
		if n <= size {
			return size
		}
	}
	return n
}

func getBytes(n int) *[]byte {
	for i, size := range byteClasses {
		if n <= size {
			if p, ok := bytePools[i].Get().(*[]byte); ok {
				return p
			}
			b := make([]byte, size)
			return &b
		}
	}
	panic("rpc: more bytes asked for than a record may have")
}

func putBytes(p *[]byte) {
	for i, size := range byteClasses {
		if len(*p) == size {
			bytePools[i].Put(p)
			return
		}
	}
}
