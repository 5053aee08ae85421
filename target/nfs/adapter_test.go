package nfs_test

import (
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

// Everything that is tried over the twin, over a fabric that promises no more than InfiniBand and RoCE adapters do.
func TestNFSOverAnAdapter(t *testing.T) {
	transporttest.OverAdapters(t, "^(TestReadIntoOwnMemoryIsGivenUp|TestMoreInFlightThanMemory|TestLyingChunks|TestAShortWriteChunkIsNoticed|TestFSConformance|TestReadAndWriteOfAllSizes|TestNamesLinksAndAttributes|TestManyCallsInFlight|TestListingWhileRenaming)$/^twin$", "^$", true)
}
