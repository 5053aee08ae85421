package scsi

// PortGroup is a target port group.
type PortGroup struct {
	ID    uint16
	State uint8
	Ports []uint16
}

type alua struct{}

func (a *alua) init(*Target) error { return nil }

func (t *Target) groupOf(port uint16) uint16 { return 1 }
