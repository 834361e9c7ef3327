// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package wirediffextension is server middleware of an OTLP receiver. It compares the
// bytes of a push with what the pipeline accepted before, and hands the receiver only
// what changed.
package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"
