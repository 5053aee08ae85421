// Package version says which build this is.
package version

import "runtime/debug"

// Version is set by the linker; String falls back to what the Go toolchain recorded.
var Version string

// String is the version for people: a tag, a commit or "devel".
func String() string {
	if Version != "" {
		return Version
	}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return s.Value[:12]
			}
		}
	}
	return "devel"
}
