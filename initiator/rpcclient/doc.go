// Package rpcclient is the client side of ONC RPC (RFC 5531) over TCP and over RPC-over-RDMA (RFC 8166): many calls in flight on
// one connection, a connection that is made again when it breaks, and calls that are sent again with their XID then, so
// that the server's reply cache knows them.
package rpcclient
