package gateway

import (
	"context"
	"errors"
	"time"
)

// Definitions returns the group's shared definitions and their version; nil and 0 where there are none.
func (g *Gateway) Definitions(ctx context.Context) (data []byte, version uint64, err error) {
	data, version, err = g.store.Read(ctx, definitionsObject, maxRecord)
	if errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	return data, version, err
}

// SetDefinitions replaces them where they are still of that version, or returns ErrChanged: of two changes at once the other has won, and
// is to be read first.
func (g *Gateway) SetDefinitions(ctx context.Context, data []byte, version uint64) error {
	_, err := g.writeSure(ctx, definitionsObject, data, version)
	if err == nil {
		g.nudge()
	}
	return err
}

// lookAtDefinitions tells of definitions that have changed, by which gateway ever, or of the first.
func (g *Gateway) lookAtDefinitions(ctx context.Context) {
	if g.opt.Definitions == nil || time.Since(g.definitionsAt) < DefinitionsEvery {
		return
	}
	data, version, err := g.Definitions(ctx)
	if err != nil {
		g.tell("read the shared definitions", "", err)
		return
	}
	if g.definitionsAt = time.Now(); version != g.definitionsVersion {
		g.definitionsVersion = version
		g.opt.Definitions(data, version)
	}
}
