//go:build !(verbs && cgo && linux)

package version

// Providers names the fabrics that this binary can use.
const Providers = "iwarp (built without verbs, the provider for RDMA adapters)"
