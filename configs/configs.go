// Package configs holds the files that come with the programs, and the schema of the daemon's configuration for the program that
// prints it.
package configs

import _ "embed"

// Schema is the JSON schema (2020-12) of the configuration file. It is written from the fields that the file is read into
// (target/daemon/config.go), and a test there fails where it differs.
//
//go:embed sluiced.schema.json
var Schema []byte
