package rping

import (
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestPingsOverAdapters(t *testing.T) { transporttest.OverAdapters(t, "^Test", "^$", true) }
