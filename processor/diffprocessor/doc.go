// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package diffprocessor takes full reports of nodes and passes on only what
// changed since the last report that the next component accepted.
package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"
