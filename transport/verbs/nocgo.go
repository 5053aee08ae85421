//go:build !(verbs && cgo && linux)

package verbs

// Built says whether this binary has the provider.
const Built = false

// openTable would open rdma-core.
func openTable() (table, error) { return nil, ErrNotBuilt }
