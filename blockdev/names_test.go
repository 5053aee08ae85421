package blockdev_test

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

func TestOpsHaveNames(t *testing.T) {
	for op := blockdev.Read; op <= blockdev.Status; op++ {
		if s := op.String(); s == "" || s[0] == 'o' && s[1] == 'p' {
			t.Errorf("%d is called %q", op, s)
		}
	}
	if s := blockdev.Op(99).String(); s != "op 99" {
		t.Errorf("99 is called %q", s)
	}
}
