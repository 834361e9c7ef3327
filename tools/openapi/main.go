// SPDX-License-Identifier: Apache-2.0

// Command openapi writes the API's OpenAPI document, version 3.0.3, to the file
// that it is given: for generators, without a server.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
)

func main() {
	log.SetFlags(0)
	// The version is the API's, of its paths: the product's would change the
	// document with each commit.
	document, err := fleetapi.New(fleetapi.Options{Version: "v1"}).OpenAPI().Downgrade()
	if err != nil {
		log.Fatal(err)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, append(document, '\n'), "", "  "); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], text.Bytes(), 0o600); err != nil {
		log.Fatal(err)
	}
}
