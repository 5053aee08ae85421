package main

import (
	"fmt"
	"strconv"
	"time"
)

var fabricScenarios = []Scenario{
	{
		Name: "siw-rping", Class: short, Limit: 10 * time.Minute, Host: []string{"sluice"},
		About:   "the guest kernel's rping over siw against sluice rping on the host, both directions",
		Prepare: prepareRping, OnHost: hostRping,
	},
	{
		Name: "rping-veth", Class: short, Limit: 10 * time.Minute, Files: []string{"sluice"},
		About:   "rping over a veth pair: MTU 1500 and 9000, CRC, MPA revision 1 and 2, peer-to-peer, IPv6",
		Prepare: func(r *Run) error { r.Env = []string{"SIZES=26 1450 65535", "PINGS=3"}; return nil },
	},
	{
		Name: "rping-sizes", Class: soak, Limit: 30 * time.Minute, Files: []string{"sluice"}, Script: "rping-veth.sh",
		About: "the same with pings of every size near a frame's, and many more of them",
		Prepare: func(r *Run) error {
			r.Env = []string{"SIZES=26 64 1448 1449 1450 1451 1452 4096 8959 8960 65535", "PINGS=20"}
			return nil
		},
	},
	{
		Name: "exchange", Class: short, Limit: 10 * time.Minute, Files: []string{"exchange"},
		About: "sends, writes and reads of 0 bytes to 1 MiB against a librdmacm program, every byte compared",
	},
}

// prepareRping starts a server for the guest's clients and opens a way to the guest's server.
func prepareRping(r *Run) error {
	server, err := freePort()
	if err != nil {
		return err
	}
	guest, err := freePort()
	if err != nil {
		return err
	}
	p, err := r.start("sluice", "rping", "server", "--persistent", "--address", loopback(server))
	if err != nil {
		return err
	}
	r.Forward = []string{fmt.Sprintf("%d:7174", guest)}
	r.Env = []string{fmt.Sprint("PORT=", server), fmt.Sprint("GUEST_PORT=", guest)}
	return p.listening(server)
}

// hostRping: ping PORT SIZE COUNT
func hostRping(r *Run, _ string, a []string) (string, error) {
	if len(a) != 3 {
		return "", fmt.Errorf("PORT SIZE COUNT, not %q", a)
	}
	port, err := strconv.Atoi(a[0])
	if err != nil {
		return "", err
	}
	return r.exec("sluice", "rping", "client", "--address", loopback(port), "--size", a[1], "--count", a[2], "--timeout", "60s")
}
