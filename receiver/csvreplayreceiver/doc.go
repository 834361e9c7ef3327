// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package csvreplayreceiver replays a table of recorded telemetry as live
// full-state samples: one report per time step of the recording, with the time
// of the replay.
package csvreplayreceiver // import "github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver"
