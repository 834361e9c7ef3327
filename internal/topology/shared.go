// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"math"
	"slices"
)

// Node is one of those in which a fault is sought.
type Node struct {
	Labels []Label
	// Job is empty for a node without one.
	Job string
	// Bad nodes are slow, silent, or have the error.
	Bad bool
}

// Finding names what the bad nodes share. The zero value names nothing.
type Finding struct {
	// Labels that cannot be told apart: each is of the same nodes. The nearest is first.
	Labels []Label
	// Bad of the Nodes with the label are bad. P is the chance that as many of so many
	// random nodes have one of the labels tested.
	Bad, Nodes int
	P          float64
}

// JobLevel is the level of a job's label in a finding.
const JobLevel = "job"

// When a label is named. Three bad nodes of one rack are not the rack's fault, so most
// of its nodes must be bad; and it must explain most of the bad ones. Random incidents
// of three to six of 64 nodes are named in less than 1 of 1,000. Below 16 nodes too few
// patterns exist for that.
const (
	minNodes = 16
	minBad   = 3
	minShare = 0.6
	maxP     = 0.001

	minExplained = 0.8
	formingShare = 0.5
)

// Shared names the label that most bad nodes and few others have. When all bad nodes
// are of one job, the job's nodes alone are tested first: a job's own fault hits
// whatever racks the job is on.
func Shared(nodes []Node) Finding { return shared(nodes, minShare) }

// Forming is Shared of a fault that may have more nodes in a moment: half of a label's
// nodes are enough.
func Forming(nodes []Node) Finding { return shared(nodes, formingShare) }

func shared(nodes []Node, least float64) Finding {
	job, one := "", true
	for i := range nodes {
		if n := &nodes[i]; n.Bad {
			job = cmp.Or(job, n.Job)
			one = one && n.Job != "" && n.Job == job
		}
	}
	if job == "" || !one {
		return test(nodes, "", least)
	}
	within := make([]Node, 0, len(nodes))
	for _, n := range nodes {
		if n.Job == job {
			within = append(within, Node{Labels: n.Labels, Bad: n.Bad})
		}
	}
	if f := test(within, "", least); len(f.Labels) > 0 || len(within) == len(nodes) {
		return f
	}
	return test(nodes, job, least)
}

// candidate is a label under test.
type candidate struct {
	label  Label
	bad, n int
	ofJob  int    // nodes that are of the job
	sum    uint64 // of the nodes' hashes: equal for equal sets
}

// test returns the smallest label that passes. With a job, it leaves out labels that
// have some of the job's nodes and not all: the job is the finer explanation.
func test(nodes []Node, job string, least float64) (none Finding) {
	bad, ofJob := 0, 0
	for i := range nodes {
		bad += one(nodes[i].Bad)
		ofJob += one(job != "" && nodes[i].Job == job)
	}
	if len(nodes) < minNodes || bad < minBad {
		return none
	}
	list := candidates(nodes, job)
	tested := 0
	for _, c := range list {
		if c.n >= minBad && len(nodes)-c.n >= minBad {
			tested++
		}
	}
	var found []*candidate
	ps := make(map[*candidate]float64)
	for _, c := range list {
		if c.n < minBad || len(nodes)-c.n < minBad || c.bad < minBad || job != "" && c.ofJob > 0 && c.ofJob < ofJob ||
			float64(c.bad) < least*float64(c.n) || float64(c.bad) < minExplained*float64(bad) {
			continue
		}
		if p := tail(len(nodes), c.n, bad, c.bad) * float64(tested); p <= maxP {
			found, ps[c] = append(found, c), p
		}
	}
	if len(found) == 0 {
		return none
	}
	best := slices.MinFunc(found, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.n, b.n), cmp.Compare(ps[a], ps[b]), a.label.Compare(b.label))
	})
	f := Finding{Bad: best.bad, Nodes: best.n, P: ps[best]}
	near := Levels(nodes)
	for _, c := range found {
		if c.n == best.n && c.sum == best.sum {
			f.Labels = append(f.Labels, c.label)
		}
	}
	slices.SortStableFunc(f.Labels, func(a, b Label) int {
		return cmp.Or(cmp.Compare(slices.Index(near, a.Level), slices.Index(near, b.Level)), a.Compare(b))
	})
	return f
}

// candidates are the labels of the nodes, and their jobs.
func candidates(nodes []Node, job string) []*candidate {
	at := make(map[Label]*candidate)
	var list []*candidate
	for i := range nodes {
		n := &nodes[i]
		// The hash of an index (SplitMix64, Steele et al. 2014); their sum names a set.
		h := uint64(i+1) * 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
		add := func(l Label) {
			c := at[l]
			if c == nil {
				c = &candidate{label: l}
				at[l], list = c, append(list, c)
			}
			c.n, c.bad, c.sum = c.n+1, c.bad+one(n.Bad), c.sum+h
			c.ofJob += one(job != "" && n.Job == job)
		}
		for _, l := range n.Labels {
			add(l)
		}
		if n.Job != "" {
			add(Label{JobLevel, n.Job})
		}
	}
	return list
}

// Levels lists the levels of the nodes, the nearest to a node first: by how many values
// hold two nodes or more. The numbers of layers run either way, and a level with a value
// per node tells nothing of a rack.
func Levels(nodes []Node) []string {
	counts := make(map[Label]int)
	for i := range nodes {
		for _, l := range nodes[i].Labels {
			counts[l]++
		}
	}
	values := make(map[string]int)
	for l, n := range counts {
		values[l.Level] += one(n >= 2)
	}
	levels := make([]string, 0, len(values))
	for level := range values {
		levels = append(levels, level)
	}
	slices.SortFunc(levels, func(a, b string) int { return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b)) })
	return levels
}

// tail is the chance that at least a of k nodes drawn from n are among m: the exact
// hypergeometric test of one side (Fisher 1922).
func tail(n, m, k, a int) (p float64) {
	all := choose(n, k)
	for i := a; i <= min(m, k); i++ {
		if k-i <= n-m {
			p += math.Exp(choose(m, i) + choose(n-m, k-i) - all)
		}
	}
	return min(p, 1)
}

// choose is the logarithm of the binomial coefficient.
func choose(n, k int) float64 {
	f := func(x int) float64 {
		y, _ := math.Lgamma(float64(x) + 1)
		return y
	}
	return f(n) - f(k) - f(n-k)
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
