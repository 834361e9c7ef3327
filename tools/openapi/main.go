// SPDX-License-Identifier: Apache-2.0

// Command openapi writes the API's OpenAPI document, version 3.0.3, to the file
// that it is given: for generators, without a server.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: openapi FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(file string) error {
	// The version is the API's, of its paths: the product's would change the
	// document with each commit.
	document, err := fleetapi.New(fleetapi.Options{Version: "v1"}).OpenAPI().Downgrade()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, document, "", "  "); err != nil {
		return err
	}
	text.WriteByte('\n')
	return os.WriteFile(file, text.Bytes(), 0o600)
}
