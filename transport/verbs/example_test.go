package verbs_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/verbs"
)

// A machine's adapters are used where it has some, and the software RNIC otherwise. A binary without the tag verbs has no adapters.
func ExampleOpen() {
	var dev transport.Device
	dev, err := verbs.Open(verbs.Options{})
	switch {
	case errors.Is(err, verbs.ErrNotBuilt), errors.Is(err, verbs.ErrNoDevices):
		dev = iwarp.New(iwarp.Options{})
	case err != nil:
		log.Fatal(err)
	}
	defer dev.Close()
	fmt.Println(dev.Name())
}
