// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"sync/atomic"
	"time"
)

// Snapshot is everything that one computation published. It is immutable
// once published.
type Snapshot struct {
	At time.Time
	// TTL after which the snapshot is not served: a gateway that
	// stopped computing must not hand out old thresholds as new.
	TTL      time.Duration
	Clusters map[string]*Cluster
	// Standing is asked for one node, known or not, and may wait for a tick.
	Standing func(cluster, node string) Standing
}

// Cluster holds the thresholds of one cluster. The cluster-wide value is nil
// until a quorum was met once.
type Cluster struct {
	Wide   *Entry
	Groups map[string]*Entry
}

// Entry is a value with its wire form, encoded once per computation instead
// of once per request.
type Entry struct {
	Value
	// Number is the threshold as the text of a plain header.
	Number string
	// Member is the value as a member of the params header, but for the flag `all`.
	Member string
}

// NewEntry encodes v. It fails when v is not valid or its group has no wire form.
func NewEntry(v Value) (*Entry, error) {
	if err := v.Validate(); err != nil {
		return nil, err
	}
	m, err := EncodeMember(v)
	if err != nil {
		return nil, err
	}
	return &Entry{Value: v, Number: FormatNumber(v.Threshold), Member: m}, nil
}

// Store hands the latest snapshot from one writer to many readers without a
// lock. The zero value is an empty store.
type Store struct {
	current atomic.Pointer[Snapshot]
}

// Publish is that of a Publisher.
func (s *Store) Publish(snap *Snapshot) { s.current.Store(snap) }

// Cluster returns the live thresholds of a cluster, nil when there are none
// or they have outlived their TTL.
func (s *Store) Cluster(name string, now time.Time) *Cluster {
	snap := s.Snapshot(now)
	if snap == nil {
		return nil
	}
	return snap.Clusters[name]
}

// Snapshot returns the live snapshot, nil when there is none.
func (s *Store) Snapshot(now time.Time) *Snapshot {
	snap := s.current.Load()
	if snap == nil || now.Sub(snap.At) > snap.TTL {
		return nil
	}
	return snap
}
