package block

import "testing"

// A fence's login by another kind of connection takes nothing of what a path keeps for its own: it would not fit, and be gone.
func TestAPathKeepsItsMemoryForItsOwnKindOfConnection(t *testing.T) {
	for _, iser := range []bool{true, false} {
		p := &path{u: &URL{ISER: iser}}
		if p.keptFor(&URL{ISER: iser}) != &p.kept {
			t.Errorf("iser %v: its own kind has none", iser)
		}
		if p.keptFor(&URL{ISER: !iser}) != nil {
			t.Errorf("iser %v: another kind has it", iser)
		}
	}
}
