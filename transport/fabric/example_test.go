package fabric_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/transport/fabric"
)

// A program that lets its user choose the provider makes the device by its name.
func ExampleNew() {
	dev, err := fabric.New("iwarp", fabric.Options{CRC: "always"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(dev.Name())
	if err := dev.Close(); err != nil {
		log.Fatal(err)
	}
	var no *fabric.WordError
	_, err = fabric.New("iwrap", fabric.Options{})
	fmt.Println(errors.As(err, &no), no.Word, no.Known)
	// Output:
	// iwarp
	// true iwrap [iwarp verbs shm]
}
