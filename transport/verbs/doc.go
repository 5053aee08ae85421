// Package verbs is the provider for RDMA adapters: InfiniBand, RoCE and iWARP hardware, and the kernel's soft devices,
// through rdma-core (libibverbs and librdmacm).
//
// The provider is Go and speaks to the libraries through a table of calls (table.go). In a binary that was built with the tag
// verbs the table is a C shim that opens the libraries when they are first needed; other binaries, and machines without the
// libraries, say so and have the other providers.
package verbs
