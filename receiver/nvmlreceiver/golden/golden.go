// SPDX-License-Identifier: Apache-2.0

// Package golden hands out the reports with which the receiver compares its own,
// for a simulator that makes reports like them without a GPU.
package golden // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/golden"

import _ "embed"

// H100 is the report of a node with one H100, in the YAML of contrib's golden
// files.
//
//go:embed h100.yaml
var H100 []byte
