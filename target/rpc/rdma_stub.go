package rpc

// RDMAOptions size RPC-over-RDMA connections. The zero value takes defaults.
type RDMAOptions struct {
	Credits int // calls in flight granted to a connection
	Inline  int // bytes of an inline message
}

type rdmaCall struct{ hasChunk bool }

func (r *rdmaCall) chunkData(c *Call, n int) ([][]byte, error) { return nil, nil }
func (r *rdmaCall) dropSink()                                  {}
