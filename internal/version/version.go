// Package version says which build this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is set by the linker, as git describes the source; where it is not, what the Go toolchain recorded stands in.
var Version string

// Commit is set by the linker likewise: the whole hash.
var Commit string

// String is the version for people: a tag, a commit or "devel".
func String() string {
	if Version != "" {
		return Version
	}
	if c := commit(); len(c) >= 12 {
		return c[:12]
	}
	return "devel"
}

// Long is String with what built it: the whole commit, the toolchain and the platform; and which fabrics it can use.
func Long() string {
	c := commit()
	if c == "" {
		c = "unknown"
	}
	return fmt.Sprintf("%s (commit %s, %s, %s/%s)\nproviders: %s", String(), c, runtime.Version(), runtime.GOOS, runtime.GOARCH, Providers)
}

func commit() string {
	if Commit != "" {
		return Commit
	}
	if bi, ok := debug.ReadBuildInfo(); ok {
		for _, s := range bi.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
