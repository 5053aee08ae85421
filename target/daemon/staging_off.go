//go:build !staging

package daemon

import "github.com/sluice-storage/sluice/blockdev"

// staging is what the build tag of that name puts before volumes on files, for measurements: nothing otherwise.
func staging(d blockdev.Device) blockdev.Device { return d }
