// SPDX-License-Identifier: Apache-2.0

// Package threshold holds the straggler threshold as it travels: from the
// gateway's straggler processor through the threshold extension into the
// response of a push, and from there to the straggler processor of the node
// that pushed. It decides nothing about stragglers; internal/straggler does.
package threshold // import "github.com/gpu-collector/gpu-collector/internal/threshold"

import (
	"fmt"
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Bounds of what crosses a trust boundary.
const (
	// MaxTTL bounds how long a received threshold may claim to be fresh.
	MaxTTL = time.Hour
	// MaxSignals bounds the parameters of one group: each signal for up to eight
	// cohorts.
	MaxSignals = 8 * int(nodesignal.Count)
)

// Value is the threshold of one peer group, or of a whole cluster when Group is empty.
// Scores and thresholds are in [0,1].
type Value struct {
	Group string
	// Version grows with each computation, across restarts of the gateway too:
	// it is the time of the computation in Unix milliseconds.
	Version int64
	// Threshold below which a node's score makes it a straggler.
	Threshold float64
	// QuorumMet is false when too few nodes were active to compute Threshold
	// anew; Threshold is then the last value that had a quorum.
	QuorumMet bool
	// Median and Scale (1.4826*MAD) of the active nodes' scores, K the factor on Scale.
	Median, Scale, K float64
	// Nodes is the number of active nodes behind Median.
	Nodes int
	// Ref is the peers' median throughput in the unit of the signal, 0 when unknown.
	Ref float64
	// Hold is true when the group is in an incident. Its nodes find their cohort by
	// means, which stand still then: to be slow is no other work.
	Hold bool
	// Settled is true of a group that was there long before: a node that comes to it
	// takes longer to warm up.
	Settled bool
	// Turns is true when the group's nodes take each other's work in turns: a node at a
	// lower cohort's level goes to that cohort, not only one at a higher cohort's.
	Turns bool
	// TTL is how long the value may be used after it was received.
	TTL time.Duration
	// Signals are the parameters of a node's own verdict, by signal and From. Not
	// changed once they are in a Value.
	Signals []SignalParams
}

// SignalParams is what one tick says about one signal of a group, or of one
// cohort of it.
type SignalParams struct {
	Signal nodesignal.Signal
	// From is the lower bound of the cohort, in the unit of By, which the group is
	// split by; only read when HasFrom. It and the Params travel as float32.
	From    float64
	By      nodesignal.Signal
	HasFrom bool
	// To is the lower bound of the next cohort, of whose nodes the signal says nothing;
	// only read when HasTo.
	To    float64
	HasTo bool
	straggler.Params
}

// validate reports why p may not be used, nil when it may.
func (p *SignalParams) validate() error {
	switch {
	case p.Signal >= nodesignal.Count:
		return fmt.Errorf("signal %d is not known", p.Signal)
	case p.By >= nodesignal.Count:
		return fmt.Errorf("signal %d of the split is not known", p.By)
	case p.HasFrom && !finite(p.From):
		return fmt.Errorf("from %v of %s is not finite", p.From, p.Signal)
	case p.HasTo && !finite(p.To):
		return fmt.Errorf("to %v of %s is not finite", p.To, p.Signal)
	}
	if err := p.Check(); err != nil {
		return fmt.Errorf("%w, of %s", err, p.Signal)
	}
	return nil
}

// Validate reports why v may not be used, nil when it may.
func (v *Value) Validate() error {
	switch {
	case !inUnit(v.Threshold):
		return fmt.Errorf("threshold %v is not in [0,1]", v.Threshold)
	case !inUnit(v.Median):
		return fmt.Errorf("median %v is not in [0,1]", v.Median)
	case !finite(v.Scale) || v.Scale < 0:
		return fmt.Errorf("scale %v is not a finite number >= 0", v.Scale)
	case !finite(v.K) || v.K < 0:
		return fmt.Errorf("k %v is not a finite number >= 0", v.K)
	case !finite(v.Ref) || v.Ref < 0:
		return fmt.Errorf("ref %v is not a finite number >= 0", v.Ref)
	case v.Nodes < 0:
		return fmt.Errorf("node count %d is negative", v.Nodes)
	case v.TTL <= 0 || v.TTL > MaxTTL:
		return fmt.Errorf("ttl %s is not in (0s,%s]", v.TTL, MaxTTL)
	case len(v.Signals) > MaxSignals:
		return fmt.Errorf("parameters of %d signals, at most %d may be", len(v.Signals), MaxSignals)
	}
	for i := range v.Signals {
		if err := v.Signals[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// Publisher takes the thresholds that a gateway computed.
type Publisher interface {
	// Publish replaces everything published before. It keeps snap: the caller
	// may not change it afterwards.
	Publish(snap *Snapshot)
}

// Source gives a node the thresholds that came back with its pushes.
type Source interface {
	// SetClaim sets the cluster, node and groups that the next pushes ask for.
	SetClaim(wire.Claim)
	// Received returns the newest threshold of a peer group of a cluster.
	Received(cluster, group string) (Received, bool)
	// Reachable reports whether the last push was answered; false before the first.
	Reachable() bool
}

// Received is a Value and when it arrived.
type Received struct {
	Value
	// At is when it was last confirmed.
	At time.Time
	// First is when its version was first heard, After when the one before it
	// was last: the value is of a tick between them. After is zero for the first
	// value of a group.
	First, After time.Time

	heard time.Time // by any answer, one with less left of its life too
}

// Fresh reports whether the value is within its own TTL.
func (r *Received) Fresh(now time.Time) bool { return now.Sub(r.At) <= r.TTL }

func inUnit(f float64) bool { return f >= 0 && f <= 1 }

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
