// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// TestPlan: what is drawn is at the published rates, and fleetsim takes it as it is written.
func TestPlan(t *testing.T) {
	total, slow := 0, 0
	const runs = 40
	for seed := range uint64(runs) {
		s := setup{Nodes: 1000, GPUs: 8, Days: 7, Rate: 1, Runs: 6 * time.Hour, Seed: seed}
		faults, rolls := draw(&s)
		assert.Len(t, rolls, 7+2)
		busy := map[int]time.Duration{}
		for i := range faults {
			f := &faults[i]
			on, parsed, err := fleetsim.ParseFault(f.flag())
			require.NoError(t, err)
			require.NoError(t, parsed.Validate(s.GPUs))
			require.Equal(t, f.node, on.Node)
			require.Equal(t, f.From, parsed.From)
			require.Equal(t, f.Until, parsed.Until)
			require.Greater(t, f.From, busy[f.node], "one at a time")
			busy[f.node] = f.Until
			if f.cause == slowLink || f.cause == slowComputer {
				slow++
			} else {
				total++
			}
		}
	}
	// 312 of the study in 21.2 million GPU-hours, and 1.33 million hours here.
	assert.InDelta(t, 19.6, float64(total)/runs, 3)
	// 42 % of some 417 jobs.
	assert.InDelta(t, 170, float64(slow)/runs, 15)
}

func TestMatch(t *testing.T) {
	faults := []fault{
		{Fault: fleetsim.Fault{From: time.Hour, Until: 2 * time.Hour}, node: 1},
		{Fault: fleetsim.Fault{From: 3 * time.Hour, Until: 4 * time.Hour}, node: 1},
		{Fault: fleetsim.Fault{From: time.Hour, Until: 2 * time.Hour}, node: 2},
	}
	one, two := fleetpush.NodeName(1), fleetpush.NodeName(2)
	alerts := []alert{
		{id: "late", nodes: []string{one}, at: 2*time.Hour + grace + time.Second},
		{id: "second", nodes: []string{one}, at: 90 * time.Minute},
		{id: "first", nodes: []string{one}, at: 61 * time.Minute},
		{id: "other", nodes: []string{two}, at: 59 * time.Minute},
		{id: "silent", nodes: []string{one}, at: 62 * time.Minute, silence: true},
		{id: "group", nodes: []string{two, one}, at: 3*time.Hour - 10*time.Second},
	}
	out := match(faults, alerts, 30*time.Second)
	about := map[string]int{}
	for _, a := range alerts {
		about[a.id] = a.fault
	}
	assert.Equal(t, map[string]int{"first": 0, "second": 0, "late": -1, "other": -1, "silent": -1, "group": 1}, about)
	require.NotNil(t, out[0].alert)
	assert.Equal(t, "first", out[0].alert.id)
	assert.Equal(t, time.Minute, out[0].delay)
	assert.Zero(t, out[1].delay, "told at once")
	assert.Nil(t, out[2].alert)

	r := result{setup: setup{Nodes: 3, GPUs: 8, Rate: 1}, speed: 20, played: 5 * time.Hour, seconds: 900, faults: out, alerts: alerts}
	var figures bytes.Buffer
	r.print(&figures)
	assert.Contains(t, figures.String(), "figure week_days 0.2083 d limit 6.99 short\n")
	assert.Contains(t, figures.String(), "figure week_missed 1 faults\n")
	assert.Contains(t, figures.String(), "figure week_false_alerts 3 alerts limit 0 short\nfigure week_false_alerts_of_silence 1 alerts\n")
	page := string(r.document())
	assert.Contains(t, page, "3 nodes of 8 GPUs for 0.21 days, at 20 times")
	assert.Equal(t, 3, strings.Count(page, "**false**"))
	assert.Equal(t, 1, strings.Count(page, "**missed**"))
}

func TestASettingThatCannotBe(t *testing.T) {
	w := week{setup: setup{Days: 0.1, Nodes: 1, GPUs: 8, Rate: -1, Runs: time.Hour}, speed: 2000}
	err := w.validate()
	for _, flag := range []string{"-days", "-nodes", "-rate", "-speed"} {
		assert.ErrorContains(t, err, flag)
	}
}
