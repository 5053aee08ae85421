package flight_test

import (
	"fmt"

	"github.com/sluice-storage/sluice/target/flight"
)

// A connection notes what happens to it. Who asks later gets the last of it.
func Example() {
	var r flight.Recorder
	r.Note("connection from %s", "192.0.2.1:1023")
	r.Note("session %d began", 3)
	var t flight.Trace
	t.AddLocked(&r) // the connection's lock is held
	for _, e := range t.Events {
		fmt.Println(e.What)
	}
	// Output:
	// connection from 192.0.2.1:1023
	// session 3 began
}
