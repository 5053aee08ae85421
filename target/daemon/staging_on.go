//go:build staging

package daemon

import (
	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/staged"
)

func staging(d blockdev.Device) blockdev.Device { return staged.Open(d) }
