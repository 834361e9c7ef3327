// SPDX-License-Identifier: Apache-2.0

// Command docs writes the documents that come from the code: the API's OpenAPI document,
// the configuration reference, the names of dcgm-exporter and the chart's values. It runs
// in the root of the repository.
package main // import "github.com/gpu-collector/gpu-collector/tools/docs"

import (
	"bytes"
	"encoding/json"
	"errors"
	"log"
	"os"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/tools/page"
)

func main() {
	log.SetFlags(0)
	values, err := valueTable("helm/gpu-collector/values.yaml")
	if err == nil {
		err = errors.Join(
			write("pkg/fleetclient/openapi.json", openAPI),
			write("docs/configuration.md", func() ([]byte, error) { return reference(".") }),
			page.Insert("docs/coming-from-dcgm-exporter.md", "<!-- begin names -->\n", dcgmTable(), "<!-- end names -->"),
			page.Insert("helm/gpu-collector/README.md", "<!-- values: written by make generate from values.yaml -->\n", values, "<!-- end of values -->"),
		)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func write(file string, content func() ([]byte, error)) error {
	text, err := content()
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// openAPI is of version 3.0.3, for generators. Its version is that of the API's paths:
// the product's would change the document with each commit.
func openAPI() ([]byte, error) {
	document, err := fleetapi.New(fleetapi.Options{Version: "v1"}).OpenAPI().Downgrade()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = json.Indent(&text, append(document, '\n'), "", "  ")
	return text.Bytes(), err
}
