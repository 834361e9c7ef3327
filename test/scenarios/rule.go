// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/robust"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold/rule"
)

// Rule judges nodes by the published threshold alone: so many scores in a row below it make
// a straggler, and so many that are exitBand above it end that.
type Rule struct {
	rule.Config
	enter, leave int
	exitBand     float64
}

type ruleDriver struct {
	Rule
	scale  float64 // makes scores of a run's values: that of the fastest job is 0.9
	nodes  []ruled
	groups map[string]*rule.Threshold
	sample robust.Sample
}

type ruled struct {
	group   string
	life    uint32
	score   float64
	age     int // ticks since it reported the score, missingTicks and more for a missing node
	verdict rule.Verdict
}

const missingTicks = 5

func (r *Rule) watch(m *Model) watcher {
	fastest := slices.MaxFunc(m.Jobs, func(a, b Job) int { return cmp.Compare(a.Level, b.Level) }).Level
	d := &ruleDriver{Rule: *r, scale: 0.9 / fastest, nodes: make([]ruled, m.Nodes), groups: map[string]*rule.Threshold{}}
	for i := range d.nodes {
		n := &d.nodes[i]
		if n.age = missingTicks; m.Recording != nil {
			d.Quorum, n.group = stageWorkers, strings.Join(m.Recording.Peers[i], "/")
		}
		d.groups[n.group] = &rule.Threshold{}
	}
	return d
}

func (d *ruleDriver) push(_ int, values []float64, lives []uint32) error {
	for i, v := range values {
		n := &d.nodes[i]
		if n.life != lives[i] {
			*n = ruled{group: n.group, life: lives[i], age: missingTicks}
		}
		if n.age++; !math.IsNaN(v) {
			n.score, n.age = min(v*d.scale, 1), 0
		}
	}
	return nil
}

func (d *ruleDriver) tick(_ int, flagged []bool) tally {
	scores := map[string][]float64{}
	for i := range d.nodes {
		if n := &d.nodes[i]; n.age < missingTicks {
			scores[n.group] = append(scores[n.group], n.score)
		}
	}
	for group, t := range d.groups {
		t.Update(&d.Config, &d.sample, scores[group], nil)
	}
	for i := range d.nodes {
		n, limit := &d.nodes[i], 0.0
		if n.verdict.Straggler {
			limit = d.exitBand
		}
		switch t := d.groups[n.group]; {
		case n.age >= missingTicks:
			n.verdict = rule.Verdict{}
		case n.age == 0 && t.Quorum && !t.Panic:
			n.verdict.Step(n.score, t.Value+limit, time.Time{}, d.enter, d.leave)
		}
		flagged[i] = n.verdict.Straggler
	}
	return tally{known: len(d.nodes)}
}
