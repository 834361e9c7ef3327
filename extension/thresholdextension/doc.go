// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package thresholdextension carries straggler thresholds over the OTLP push itself.
// As server middleware it adds the thresholds of a straggler processor to each
// response. As client middleware it reads them for the straggler processor of the
// agent. It also answers GET requests for people and for clients that poll.
package thresholdextension // import "github.com/gpu-collector/gpu-collector/extension/thresholdextension"
