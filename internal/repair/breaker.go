// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"time"
)

// BreakerConfig bounds the nodes that are acted upon. A limit of 0 allows none.
type BreakerConfig struct {
	// MaxNodes may be kept off at a time.
	MaxNodes int
	// MaxFraction of a peer group may be kept off at a time, but always one node.
	MaxFraction float64
	// MaxPerHour nodes may be taken on within an hour.
	MaxPerHour int
}

// Breaker is the state of the breaker. It opens at the first node beyond a limit, and
// stays open until a person resets it.
type Breaker struct {
	Open  bool      `json:"open,omitempty"`
	Rule  Rule      `json:"rule,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Opened counts how often it opened.
	Opened int `json:"opened,omitempty"`
	// Noticed is when people were last notified that it is open.
	Noticed time.Time `json:"noticed,omitzero"`
	// Taken is when nodes were taken on within the last hour.
	Taken []time.Time `json:"taken,omitempty"`
	// Reset is the word that closed it last: the same word closes it only once.
	Reset string `json:"reset,omitempty"`
	// Former are the words before it: of two replicas one may still have an old one.
	Former []string `json:"former,omitempty"`
}

// maxFormer bounds the words that are known.
const maxFormer = 8

// admit takes a node on, or opens the breaker and names the limit. Of kept nodes that are
// kept off already inGroup are in the node's group, which has size nodes; 0 is unknown.
// Of late nodes the first mark has been due for more than an hour.
func (b *Breaker) admit(cfg *BreakerConfig, kept, inGroup, size, late int, now time.Time) Rule {
	if b.Open {
		return RuleBreakerOpen
	}
	b.Taken = slices.DeleteFunc(b.Taken, func(t time.Time) bool { return now.Sub(t) >= time.Hour })
	rule := Rule("")
	switch {
	case len(b.Taken)+late >= cfg.MaxPerHour:
		rule = RulePerHour
	case kept >= cfg.MaxNodes:
		rule = RuleNodes
	case size > 0 && inGroup > 0 && float64(inGroup+1) > cfg.MaxFraction*float64(size):
		rule = RuleFraction
	default:
		b.Taken = append(b.Taken, now)
		return ""
	}
	b.Open, b.Rule, b.Since = true, rule, now
	b.Opened++
	return rule
}

// marked has a node count from when its first mark took effect: a system that was away, or
// a silence, may have held that up.
func (b *Breaker) marked(c *Case, now time.Time) {
	if i := slices.IndexFunc(b.Taken, c.Taken.Equal); i >= 0 {
		b.Taken = slices.Delete(b.Taken, i, i+1)
	}
	b.Taken = append(b.Taken, now)
	c.Taken = now
}

// leave takes a node back of which every mark was refused.
func (b *Breaker) leave(c *Case) {
	if i := slices.IndexFunc(b.Taken, c.Taken.Equal); i >= 0 && !c.Touched {
		b.Taken = slices.Delete(b.Taken, i, i+1)
	}
	c.Taken = time.Time{}
}

// late reports whether a node was taken on more than an hour ago, and is not marked yet.
func (c *Case) late(now time.Time) bool {
	return c.Admitted && len(c.Marks) == 0 && now.Sub(c.Taken) >= time.Hour
}

// knows reports whether a word says nothing new. An empty one never does.
func (b *Breaker) knows(word string) bool {
	return word == "" || word == b.Reset || slices.Contains(b.Former, word)
}

// reset closes the breaker if the word is a new one. The nodes of the last hour still count.
func (b *Breaker) reset(word string) bool {
	if b.knows(word) {
		return false
	}
	if b.Reset != "" {
		b.Former = append(b.Former[max(0, len(b.Former)+1-maxFormer):], b.Reset)
	}
	b.Reset = word
	was := b.Open
	b.Open, b.Rule, b.Since, b.Noticed = false, "", time.Time{}, time.Time{}
	return was
}

// Trip opens the breaker for another reason than a limit.
func (m *Machine) Trip(rule Rule, now time.Time) {
	b := &m.state.Breaker
	if b.Open {
		return
	}
	b.Open, b.Rule, b.Since = true, rule, now
	b.Opened++
	m.alert(rule, now)
}
