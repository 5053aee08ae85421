package block

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Asymmetric access states (SPC-4 section 5.15.2.4).
const (
	aluaOptimized    = 0x0
	aluaNonOptimized = 0x1
	aluaTransition   = 0xf
)

// alua is the state of a target port group by REPORT TARGET PORT GROUPS (SPC-4 section 6.37).
func (p *probe) alua(ctx context.Context, group uint16) (uint8, error) {
	cdb := make([]byte, 12)
	cdb[0], cdb[1] = opMaintenanceIn, 0x0a
	binary.BigEndian.PutUint32(cdb[6:], mem.PageSize)
	b, err := p.in(ctx, cdb, mem.PageSize)
	if err != nil {
		if errors.Is(err, blockdev.ErrUnsupported) {
			return aluaOptimized, nil
		}
		return 0, err
	}
	if len(b) < 4 {
		return aluaOptimized, nil
	}
	for d := b[4:min(len(b), 4+int(binary.BigEndian.Uint32(b)&0xffff))]; len(d) >= 8; {
		if binary.BigEndian.Uint16(d[2:]) == group {
			return d[0] & 0x0f, nil
		}
		d = d[min(8+4*int(d[7]), len(d)):]
	}
	return aluaOptimized, nil
}

// setStateLocked takes an asymmetric access state. The volume's lock is held.
func (s *session) setStateLocked(state uint8, group uint16) {
	s.group, s.rank = group, int(state)
	s.usable = state == aluaOptimized || state == aluaNonOptimized
}
