package block

import (
	"context"
	"fmt"

	"github.com/sluice-storage/sluice/mem"
)

// Raw runs a SCSI command as it is. data is filled when in is set and sent otherwise; the number of bytes that moved is
// returned. CHECK CONDITION is a *SenseError. It is not sent again after a lost connection.
func (v *Volume) Raw(ctx context.Context, cdb, data []byte, in bool) (int, error) {
	if len(data) > mem.MaxBuf {
		return 0, fmt.Errorf("%w: a raw command of %d bytes, where %d are the limit", ErrBadRequest, len(data), mem.MaxBuf)
	}
	r := command(cdb, in)
	r.waiter = make(chan struct{}, 1)
	if len(data) == 0 {
		return 0, v.do(ctx, r)
	}
	b, err := v.get(ctx, len(data))
	if err != nil {
		return 0, err
	}
	defer v.put(b)
	r.Data = []mem.Span{b.Span()}
	if !in {
		copy(b.Bytes(), data)
	}
	err = v.do(ctx, r)
	if in {
		copy(data, b.Bytes())
	}
	return int(r.transferred), err
}

// Inquiry reads standard INQUIRY data with page -1, otherwise a vital product data page.
func (v *Volume) Inquiry(ctx context.Context, page int) ([]byte, error) {
	cdb := []byte{opInquiry, 0, 0, 0, 255, 0}
	if page >= 0 {
		cdb[1], cdb[2] = 1, byte(page)
	}
	b := make([]byte, 255)
	n, err := v.Raw(ctx, cdb, b, true)
	return b[:n], err
}

// LUNs lists the logical units of the target by REPORT LUNS.
func (v *Volume) LUNs(ctx context.Context) ([]uint16, error) {
	cdb := make([]byte, 12)
	cdb[0] = opReportLUNs
	cdb[8] = 0x40 // 16 KiB
	b := make([]byte, 16<<10)
	n, err := v.Raw(ctx, cdb, b, true)
	if err != nil {
		return nil, err
	}
	var out []uint16
	for d := b[min(8, n):n]; len(d) >= 8; d = d[8:] {
		var x uint64
		for _, c := range d[:8] {
			x = x<<8 | uint64(c)
		}
		if lun, ok := decodeLUN(x); ok {
			out = append(out, lun)
		}
	}
	return out, nil
}
