package main

import (
	"slices"
	"testing"
)

// The guest gets the tests that want an adapter, and no other.
func TestTheSuiteIsWhatWantsAnAdapter(t *testing.T) {
	names, err := adapterTests("../../../transport/verbs")
	if err != nil {
		t.Fatal(err)
	}
	for name, wanted := range map[string]bool{"TestAdapterKeepsEveryRule": true, "TestRefusals": true, "TestPortEvents": true, "TestKeepsEveryRule": false, "TestEveryCallFailsOnce": false} {
		if slices.Contains(names, name) != wanted {
			t.Errorf("%s is in the guest's suite: %t, of %q", name, !wanted, names)
		}
	}
	if _, err := adapterTests(t.TempDir()); err == nil {
		t.Error("a directory without tests is a suite")
	}
}
