// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/gpu-collector/gpu-collector/test/scenarios"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// probe asks the engine for more than its verdicts.
func (o *options) probe(ctx context.Context, drawn, recorded []families.Family) error {
	if o.wants("agents") {
		results, err := scenarios.EvaluateAgents(ctx, slices.Concat(drawn, recorded), o.families("agents", nil))
		if err != nil {
			return err
		}
		scenarios.AgentFigures(os.Stdout, results)
	}
	if o.wants("badinput") {
		results, err := scenarios.EvaluateBadNodes(ctx, drawn, o.families("a bad node", nil))
		if err != nil {
			return err
		}
		fmt.Println(scenarios.BadText(results))
		scenarios.BadFigures(os.Stdout, results)
	}
	if o.wants("siblings") {
		results, err := scenarios.EvaluateSiblings(ctx, scenarios.SiblingCases(), o.seed, func(done, runs int, name string) {
			o.progress(done, runs, "siblings "+name)
		})
		if err != nil {
			return err
		}
		scenarios.SiblingFigures(os.Stdout, results)
	}
	if o.wants("collectives") {
		results, err := scenarios.EvaluateCollectives(ctx, scenarios.CollectiveCases(), o.seed, func(done, runs int, name string) {
			o.progress(done, runs, "collectives "+name)
		})
		if err != nil {
			return err
		}
		scenarios.CollectiveFigures(os.Stdout, results)
	}
	if o.wants("hangs") {
		results, err := scenarios.EvaluateHangs(ctx, scenarios.HangCases(), o.seed, func(done, runs int, name string) {
			o.progress(done, runs, "hangs "+name)
		})
		if err != nil {
			return err
		}
		scenarios.HangFigures(os.Stdout, results)
	}
	if o.wants("jobcost") {
		if err := o.cost(); err != nil {
			return err
		}
	}
	if o.wants("topology") {
		return scenarios.TopologyFigures(os.Stdout, o.seed, cmp.Or(o.runs, 200))
	}
	return nil
}

// cost prints what a recorded job loses.
func (o *options) cost() error {
	ops, err := scenarios.ReadTimeline(o.timeline)
	if err != nil {
		return err
	}
	times, err := scenarios.ReadStepTimes(scenarios.ComputeTimes)
	if err != nil {
		return err
	}
	if err := scenarios.CostFigures(os.Stdout, ops, times, o.timeline == scenarios.Timeline); err != nil {
		return err
	}
	all, err := scenarios.SimulateCosts(o.seed, cmp.Or(o.runs, 40))
	if err != nil {
		return err
	}
	scenarios.SimulatedCostFigures(os.Stdout, all)
	return nil
}
