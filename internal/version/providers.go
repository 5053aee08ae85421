//go:build verbs && cgo && linux

package version

// Providers names the fabrics that this binary can use.
const Providers = "iwarp, verbs (RDMA adapters by rdma-core, which is opened when it is needed)"
