// SPDX-License-Identifier: Apache-2.0

// Package configs has what the demo needs of this folder in the binary.
package configs // import "github.com/gpu-collector/gpu-collector/configs"

import _ "embed" // for go:embed

// Demo is the configuration of the demo.
//
//go:embed demo.yaml
var Demo string

// DemoRecording is the training run that the demo replays.
//
//go:embed demo/step-times-AR.csv
var DemoRecording []byte
