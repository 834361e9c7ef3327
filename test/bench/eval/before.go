// SPDX-License-Identifier: Apache-2.0

//go:build enginebefore

package main

import (
	"context"

	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// probe leaves out what an engine of another commit may not know: its parameters.
func (*options) probe(context.Context, []families.Family) error { return nil }
