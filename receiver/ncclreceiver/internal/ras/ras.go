// SPDX-License-Identifier: Apache-2.0

// Package ras asks NCCL's RAS service.
package ras // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"

import (
	"context"
	"errors"
)

// Report is what RAS knows of a job.
type Report struct{}

// Laggard is a rank that the others wait for.
type Laggard struct {
	Communicator string
	Rank         int64
	Host         string
	PID          int64
	Missing      bool
	Size         int64
}

// Ask asks.
func Ask(context.Context, string) (*Report, error) { return nil, errors.New("not built") }

// Has reports whether RAS knows a communicator of the Inspector.
func (*Report) Has(string) bool { return false }

// Laggards are those of the communicators.
func (*Report) Laggards([]string) []Laggard { return nil }
