// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/gpu-collector/gpu-collector/test/scenarios"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// probe asks the engine for more than its verdicts.
func (o *options) probe(ctx context.Context, drawn []families.Family) error {
	if o.wants("badinput") {
		results, err := scenarios.EvaluateBadNodes(ctx, drawn, o.families("a bad node", nil))
		if err != nil {
			return err
		}
		fmt.Println(scenarios.BadText(results))
		scenarios.BadFigures(os.Stdout, results)
	}
	return nil
}
