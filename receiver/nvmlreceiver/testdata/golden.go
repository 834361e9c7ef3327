// SPDX-License-Identifier: Apache-2.0

// Package testdata hands out what the receiver's tests compare its reports
// with, for whoever makes reports like them without a GPU.
package testdata // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/testdata"

import _ "embed"

// H100 is the report of a node with one H100, in the YAML of contrib's golden
// files.
//
//go:embed h100.yaml
var H100 []byte
