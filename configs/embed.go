// SPDX-License-Identifier: Apache-2.0

// Package configs has what commands need of this folder in the binary.
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

// Agent is the agent's configuration, for `check` on a machine without a file of it.
//
//go:embed agent.yaml
var Agent string
