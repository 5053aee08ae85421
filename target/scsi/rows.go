package scsi

// rows is the command table. Usage data holds the service action where there is one.
func rows() []*row {
	return []*row{
		{op: OpTestUnitReady, sa: noSA, name: "TEST UNIT READY", length: 6, usage: "00 00 00 00 00 00",
			class: conflictSPC2, recommended: 10, begin: beginTUR},
		{op: OpRequestSense, sa: noSA, name: "REQUEST SENSE", length: 6, usage: "03 01 00 00 ff 00", dir: dirIn,
			class: conflictNever, traits: anyTime | inStandby | inUnavail | notReadyToo, recommended: 10, begin: beginRequestSense},
		{op: OpInquiry, sa: noSA, name: "INQUIRY", length: 6, usage: "12 01 ff ff ff 00", dir: dirIn,
			class: conflictNever, traits: anyTime | inStandby | inUnavail | notReadyToo, recommended: 10, begin: beginInquiry},
		{op: OpReportLuns, sa: noSA, name: "REPORT LUNS", length: 12, usage: "a0 00 ff 00 00 00 ff ff ff ff 00 00", dir: dirIn,
			class: conflictNever, traits: anyTime | inStandby | inUnavail | notReadyToo, recommended: 10, begin: beginReportLuns},
		{op: OpReadCapacity10, sa: noSA, name: "READ CAPACITY(10)", length: 10, usage: "25 00 ff ff ff ff 00 00 00 00", dir: dirIn,
			class: conflictReads, traits: 0, recommended: 10, begin: beginReadCapacity10},
		{op: OpServiceActionIn16, sa: saReadCapacity16, name: "READ CAPACITY(16)", length: 16,
			usage: "9e 10 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", dir: dirIn,
			class: conflictReads, recommended: 10, begin: beginReadCapacity16},

		{op: OpRead6, sa: noSA, name: "READ(6)", length: 6, usage: "08 1f ff ff ff 00", dir: dirIn,
			class: conflictReads, recommended: 30, begin: beginRead},
		{op: OpRead10, sa: noSA, name: "READ(10)", length: 10, usage: "28 18 ff ff ff ff 1f ff ff 00", dir: dirIn,
			class: conflictReads, recommended: 30, begin: beginRead},
		{op: OpRead12, sa: noSA, name: "READ(12)", length: 12, usage: "a8 18 ff ff ff ff ff ff ff ff 1f 00", dir: dirIn,
			class: conflictReads, recommended: 30, begin: beginRead},
		{op: OpRead16, sa: noSA, name: "READ(16)", length: 16, usage: "88 18 ff ff ff ff ff ff ff ff ff ff ff ff 1f 00", dir: dirIn,
			class: conflictReads, recommended: 30, begin: beginRead},
		{op: OpWrite6, sa: noSA, name: "WRITE(6)", length: 6, usage: "0a 1f ff ff ff 00", dir: dirOut,
			class: conflictWrites, traits: mutates, recommended: 30, begin: beginWrite},
		{op: OpWrite10, sa: noSA, name: "WRITE(10)", length: 10, usage: "2a 18 ff ff ff ff 1f ff ff 00", dir: dirOut,
			class: conflictWrites, traits: mutates, recommended: 30, begin: beginWrite},
		{op: OpWrite12, sa: noSA, name: "WRITE(12)", length: 12, usage: "aa 18 ff ff ff ff ff ff ff ff 1f 00", dir: dirOut,
			class: conflictWrites, traits: mutates, recommended: 30, begin: beginWrite},
		{op: OpWrite16, sa: noSA, name: "WRITE(16)", length: 16, usage: "8a 18 ff ff ff ff ff ff ff ff ff ff ff ff 1f 00", dir: dirOut,
			class: conflictWrites, traits: mutates, recommended: 30, begin: beginWrite},
		{op: OpSynchronizeCache10, sa: noSA, name: "SYNCHRONIZE CACHE(10)", length: 10, usage: "35 06 ff ff ff ff 1f ff ff 00",
			class: conflictWrites, recommended: 60, begin: beginSyncCache},
		{op: OpSynchronizeCache16, sa: noSA, name: "SYNCHRONIZE CACHE(16)", length: 16,
			usage: "91 06 ff ff ff ff ff ff ff ff ff ff ff ff 1f 00",
			class: conflictWrites, recommended: 60, begin: beginSyncCache},
	}
}
