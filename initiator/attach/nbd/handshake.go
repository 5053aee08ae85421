package nbd

import (
	"encoding/binary"
	"strings"
)

var be = binary.BigEndian

// negotiate speaks the handshake; it reports whether the client went on to transmission.
func (c *conn) negotiate() (bool, error) {
	hello := be.AppendUint64(nil, magicInit)
	hello = be.AppendUint64(hello, magicOption)
	hello = be.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := c.nc.Write(hello); err != nil {
		return false, err
	}
	b, err := c.in.next(4)
	if err != nil {
		return false, err
	}
	flags := be.Uint32(b)
	if flags&^(flagFixedNewstyle|flagNoZeroes) != 0 {
		return false, broke("unknown client flags 0x%x", flags)
	}
	for {
		b, err := c.in.next(16)
		if err != nil {
			return false, err
		}
		opt, n := be.Uint32(b[8:]), be.Uint32(b[12:])
		if be.Uint64(b) != magicOption {
			return false, broke("an option begins with 0x%x", b[:8])
		}
		if n > maxOption {
			return false, broke("option %d of %d bytes; at most %d are taken", opt, n, maxOption)
		}
		data, err := c.in.next(int(n)) // inputBuf has room for maxOption
		if err != nil {
			return false, err
		}
		done, on, err := c.option(opt, data, flags&flagNoZeroes != 0)
		if done || err != nil {
			return on, err
		}
	}
}

func (c *conn) reply(opt, kind uint32, data []byte) error {
	b := be.AppendUint64(nil, magicReply)
	b = be.AppendUint32(b, opt)
	b = be.AppendUint32(b, kind)
	b = be.AppendUint32(b, uint32(len(data)))
	_, err := c.nc.Write(append(b, data...))
	return err
}

// option answers one option; done ends the handshake, and on says that transmission follows.
func (c *conn) option(opt uint32, data []byte, noZeroes bool) (done, on bool, err error) {
	switch opt {
	case optExportName:
		if !c.named(string(data)) {
			return true, false, broke("no export %q", data)
		}
		b := be.AppendUint64(nil, uint64(c.s.vol.Geometry().Size))
		b = be.AppendUint16(b, c.transmissionFlags())
		if !noZeroes {
			b = append(b, make([]byte, 124)...)
		}
		_, err := c.nc.Write(b)
		return true, true, err
	case optAbort:
		return true, false, c.reply(opt, repAck, nil)
	case optList:
		if len(data) != 0 {
			return false, false, c.reply(opt, repErrInvalid, nil)
		}
		name := be.AppendUint32(nil, uint32(len(c.s.opt.Name)))
		if err := c.reply(opt, repServer, append(name, c.s.opt.Name...)); err != nil {
			return false, false, err
		}
		return false, false, c.reply(opt, repAck, nil)
	case optInfo, optGo:
		ok, err := c.info(opt, data)
		return ok && opt == optGo, true, err
	case optStructuredReply:
		if len(data) != 0 {
			return false, false, c.reply(opt, repErrInvalid, nil)
		}
		c.structured = true
		return false, false, c.reply(opt, repAck, nil)
	case optListMeta, optSetMeta:
		return false, false, c.meta(opt, data)
	}
	return false, false, c.reply(opt, repErrUnsup, nil)
}

// transmissionFlags are those of this client: DF is for structured replies, and must not be offered without (doc/proto.md,
// NBD_FLAG_SEND_DF).
func (c *conn) transmissionFlags() uint16 {
	f := c.s.Flags()
	if c.structured {
		f |= sendDF
	}
	return f
}

func (c *conn) named(name string) bool { return name == "" || name == c.s.opt.Name }

// info answers NBD_OPT_INFO and NBD_OPT_GO.
func (c *conn) info(opt uint32, data []byte) (bool, error) {
	if len(data) < 6 || be.Uint32(data) > maxName || int(be.Uint32(data)) > len(data)-6 {
		return false, c.reply(opt, repErrInvalid, nil)
	}
	n := int(be.Uint32(data))
	name, rest := string(data[4:4+n]), data[4+n:]
	if len(rest) != 2+2*int(be.Uint16(rest)) {
		return false, c.reply(opt, repErrInvalid, nil)
	}
	if !c.named(name) {
		return false, c.reply(opt, repErrUnknown, []byte("no such export"))
	}
	g := c.s.vol.Geometry()
	b := be.AppendUint16(nil, infoExport)
	b = be.AppendUint64(b, uint64(g.Size))
	b = be.AppendUint16(b, c.transmissionFlags())
	if err := c.reply(opt, repInfo, b); err != nil {
		return false, err
	}
	if err := c.reply(opt, repInfo, append(be.AppendUint16(nil, infoName), c.s.opt.Name...)); err != nil {
		return false, err
	}
	b = be.AppendUint16(nil, infoBlockSize)
	b = be.AppendUint32(b, uint32(g.Logical))
	b = be.AppendUint32(b, uint32(max(g.Physical, 4096)))
	b = be.AppendUint32(b, uint32(c.s.payload()))
	if err := c.reply(opt, repInfo, b); err != nil {
		return false, err
	}
	return true, c.reply(opt, repAck, nil)
}

// meta answers the queries for metadata contexts; base:allocation is the one there is.
func (c *conn) meta(opt uint32, data []byte) error {
	next := func() (string, bool) {
		if len(data) < 4 || be.Uint32(data) > maxName || int(be.Uint32(data)) > len(data)-4 {
			return "", false
		}
		n := int(be.Uint32(data))
		s := string(data[4 : 4+n])
		data = data[4+n:]
		return s, true
	}
	name, ok := next()
	if !ok || len(data) < 4 || !c.structured {
		return c.reply(opt, repErrInvalid, nil)
	}
	if !c.named(name) {
		return c.reply(opt, repErrUnknown, nil)
	}
	count := be.Uint32(data)
	data = data[4:]
	want := count == 0 && opt == optListMeta
	for range min(count, maxOption/4) {
		q, ok := next()
		if !ok {
			return c.reply(opt, repErrInvalid, nil)
		}
		want = want || q == allocation || opt == optListMeta && strings.HasPrefix(allocation, q)
	}
	if len(data) != 0 {
		return c.reply(opt, repErrInvalid, nil)
	}
	if opt == optSetMeta {
		c.status = want
	}
	if want {
		id := uint32(contextID)
		if opt == optListMeta {
			id = 0
		}
		if err := c.reply(opt, repMetaContext, append(be.AppendUint32(nil, id), allocation...)); err != nil {
			return err
		}
	}
	return c.reply(opt, repAck, nil)
}
