package scsi_test

import (
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

// wire is a transport of ones own, for one command: it keeps the data that the initiator would get.
type wire struct {
	data []byte
	done chan struct{}
}

func (w *wire) DataIn(c *scsi.Command, off int, data []mem.Span) {
	for _, s := range data {
		off += copy(w.data[off:], s.Bytes())
	}
	c.Moved(nil)
}

func (w *wire) DataOut(c *scsi.Command, _ int, _ []mem.Span) {
	c.Moved(errors.New("the initiator has no data"))
}
func (w *wire) Complete(*scsi.Command) { close(w.done) }

// target makes a target with a disk in memory as LUN 0.
func target() (t *scsi.Target, end func()) {
	var dev blockdev.Device
	dev, err := bmem.Open(bmem.Options{Size: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	unit, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: dev, Name: "disk", Vendor: "EXAMPLE", Product: "disk in memory", Volatile: true})
	if err != nil {
		log.Fatal(err)
	}
	memory := mem.NewPool(16 << 20)
	t, err = scsi.NewTarget(scsi.TargetOptions{Name: "iqn.2026-11.example:disks", Memory: memory})
	if err != nil {
		log.Fatal(err)
	}
	if err := t.AddLUN(0, unit); err != nil {
		log.Fatal(err)
	}
	return t, func() {
		err := t.RemoveLUN(0)
		unit.Close()
		if err := errors.Join(err, dev.Close(), memory.Close()); err != nil {
			log.Fatal(err)
		}
	}
}

// A session of any transport gives commands to a nexus, and moves their data.
func ExampleNexus_Execute() {
	t, end := target()
	defer end()
	n := t.NewNexus(scsi.NexusOptions{InitiatorName: "iqn.2026-11.example:host", TargetPortGroup: 1, Transport: "a channel"})
	w := &wire{data: make([]byte, 36), done: make(chan struct{})}
	inquiry := &scsi.Command{LUN: scsi.EncodeLUN(0), CDB: []byte{byte(scsi.OpInquiry), 0, 0, 0, 36, 0}, ExpectIn: 36, Nexus: n, Mover: w}
	n.Execute(inquiry)
	<-w.done
	fmt.Println(inquiry.Status == scsi.StatusGood, inquiry.TransferIn)
	fmt.Printf("%s: %s\n", strings.TrimSpace(string(w.data[8:16])), strings.TrimSpace(string(w.data[16:32])))

	ended := make(chan struct{})
	n.Close(func() { close(ended) })
	<-ended
	// Output:
	// true 36
	// EXAMPLE: disk in memory
}

// A port group's state is what multipath drivers choose paths by.
func ExampleTarget_SetPortGroup() {
	t, end := target()
	defer end()
	if err := t.SetPortGroup(1, scsi.Standby); err != nil {
		log.Fatal(err)
	}
	for _, g := range t.PortGroups() {
		fmt.Println(g.ID, g.State)
	}
	// Output: 1 standby
}
