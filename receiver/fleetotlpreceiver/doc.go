// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package fleetotlpreceiver is the one way in for pushes of a fleet. It takes OTLP over
// gRPC and HTTP, and works on a push in one line: identity, permit, bytes, comparison
// with the table, decoding, the pipeline, and the answer with threshold and verdict.
package fleetotlpreceiver // import "github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver"
