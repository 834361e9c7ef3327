// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// State of a node as it reports it, or StateMissing when it stopped reporting.
type State uint8

// States. Only active nodes have peers and can be stragglers.
const (
	StateActive State = iota
	StateIdle
	StateCalibrating
	StateMissing
	numStates
)

var stateNames = [numStates]string{"active", "idle", "calibrating", "missing"}

// ParseState reads a gpu.node.state attribute.
func ParseState(s string) (State, bool) {
	if i := slices.Index(stateNames[:StateMissing], s); i >= 0 {
		return State(i), true
	}
	return StateMissing, false
}

func (s State) String() string { return stateNames[s] }

// maxNameLength is a DNS name's (RFC 1035).
const maxNameLength = 253

// Why an observation is not taken.
var (
	ErrNoCluster       = errors.New("no cluster name")
	ErrNoNode          = errors.New("no node name")
	ErrNameTooLong     = errors.New("name is longer than 253 bytes")
	ErrScoreRange      = errors.New("score is not a number in [0,1]")
	ErrSignalRange     = errors.New("signal is not a finite number >= 0")
	ErrTooManyClusters = errors.New("more clusters than `max_clusters`")
	ErrTooManyGroups   = errors.New("more peer groups than `max_groups`")
	ErrTooManyNodes    = errors.New("more nodes than `max_nodes`")
	ErrClusterGroups   = errors.New("cluster holds its share of `max_groups`")
	ErrClusterNodes    = errors.New("cluster holds its share of `max_nodes`")
)

// Observation is what one push said about one node.
type Observation struct {
	Cluster, Node string
	// Peers are the values of the peer-group attributes that this push named, in
	// configured order, empty where it named none. Not kept. A node's reports know
	// more or less of them: see peergroup.Memory.
	Peers []string
	// State that the node reports; only read when HasState. A node that has
	// never told its state is active from its first score on.
	State    State
	HasState bool
	// Score in [0,1]; only read when HasScore.
	Score    float64
	HasScore bool
	// NoScore says that the node's score cannot be used; the old one is void.
	NoScore bool
	// Heartbeat confirms the score known before: the node has reported, and a
	// processor that forwards only changes had none to forward.
	Heartbeat bool
	// Values are the raw signals that this push told, >= 0, each in the unit of
	// its signal. nodesignal.Score is not read: that is Score.
	Values nodesignal.Values
	// Gone are the signals that the node measures no more; their values are void.
	Gone [nodesignal.Count]bool
	// Culprit is the rank or GPU that holds the node's throughput down, empty for
	// none; only read when HasCulprit. NoCulprit stopped holding it down.
	Culprit    nodesignal.Subject
	HasCulprit bool
	NoCulprit  nodesignal.Subject
}

func (o *Observation) validate() error {
	switch {
	case o.Cluster == "":
		return ErrNoCluster
	case o.Node == "":
		return ErrNoNode
	case len(o.Cluster) > maxNameLength || len(o.Node) > maxNameLength:
		return ErrNameTooLong
	case o.HasScore && !(o.Score >= 0 && o.Score <= 1):
		return ErrScoreRange
	}
	for s := range nodesignal.Score {
		if o.Values.Known[s] && !(o.Values.V[s] >= 0 && !math.IsInf(o.Values.V[s], 1)) {
			return ErrSignalRange
		}
	}
	if len(o.Culprit.GPU) > maxNameLength {
		return ErrNameTooLong
	}
	for _, p := range o.Peers {
		if len(p) > maxNameLength {
			return ErrNameTooLong
		}
	}
	return nil
}

// Verdict is the state machine of one node under the plain rule; the gateway
// and the node itself run the same one. The zero value is a node in good standing.
type Verdict struct {
	// Straggler is the current verdict, Since the first observation of the
	// run of low scores that led to it.
	Straggler bool
	Since     time.Time

	low, high int
	lowSince  time.Time
}

// Step takes one score against one threshold and reports whether Straggler changed.
func (v *Verdict) Step(score, threshold float64, at time.Time, enter, leave int) bool {
	if score < threshold {
		if v.low == 0 {
			v.lowSince = at
		}
		v.low, v.high = v.low+1, 0
		if !v.Straggler && v.low >= enter {
			v.Straggler, v.Since = true, v.lowSince
			return true
		}
		return false
	}
	v.high, v.low = v.high+1, 0
	if v.Straggler && v.high >= leave {
		v.Straggler = false
		return true
	}
	return false
}

// Reset ends any run and verdict and reports whether Straggler changed.
func (v *Verdict) Reset() bool {
	was := v.Straggler
	*v = Verdict{}
	return was
}

// Suspect reports whether the last score was below the threshold.
func (v *Verdict) Suspect() bool { return v.low > 0 || v.Straggler }
