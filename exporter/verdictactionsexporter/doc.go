// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package verdictactionsexporter acts on the verdicts about nodes: it keeps jobs off a node
// that is confirmed to be slow or ill, has its repair proven, and gives it back. Decisions
// are those of internal/repair; each of them is a gpu.action record.
package verdictactionsexporter // import "github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter"
