// SPDX-License-Identifier: Apache-2.0

package nodesignal

import (
	"errors"
	"math"
	"slices"
)

// maxNameLength is a DNS name's (RFC 1035).
const maxNameLength = 253

// Why an observation is not taken.
var (
	ErrNoCluster   = errors.New("no cluster name")
	ErrNoNode      = errors.New("no node name")
	ErrNameTooLong = errors.New("name is longer than 253 bytes")
	ErrScoreRange  = errors.New("score is not a number in [0,1]")
	ErrSignalRange = errors.New("signal is not a finite number >= 0")
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
	// its signal. The one of the signal Score is not read: that is Score.
	Values Values
	// Contested tells that several machines report under the node's name.
	Contested bool
	// Gone are the signals that the node measures no more; their values are void.
	Gone [Count]bool
}

// Validate returns why the observation cannot be taken, nil when it can.
func (o *Observation) Validate() error {
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
	for s := range Score {
		if o.Values.Known[s] && !(o.Values.V[s] >= 0 && !math.IsInf(o.Values.V[s], 1)) {
			return ErrSignalRange
		}
	}
	if slices.ContainsFunc(o.Peers, func(s string) bool { return len(s) > maxNameLength }) {
		return ErrNameTooLong
	}
	return nil
}
