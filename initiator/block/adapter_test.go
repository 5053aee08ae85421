package block

import (
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestISEROverAnAdapter(t *testing.T) {
	transporttest.OverAdapters(t, "Hostile|Inval|STag|ISER|Lent|Early|Immediate|Overtak", "^$", false)
}
