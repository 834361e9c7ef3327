// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package thresholdextension carries straggler thresholds over the OTLP push
// itself. As server middleware of an OTLP receiver it adds the thresholds that
// a straggler processor published to each response; as client middleware of an
// OTLP exporter it reads them and hands them to the straggler processor of the
// agent. It also answers GET requests for people and for clients that poll.
package thresholdextension // import "github.com/gpu-collector/gpu-collector/extension/thresholdextension"
