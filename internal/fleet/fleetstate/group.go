// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// GroupKey names a peer group. The empty group is the whole cluster.
type GroupKey struct {
	Cluster string `json:"cluster"`
	Group   string `json:"group"`
}

// Group is the latest view of a peer group, as the gateway reported it.
type Group struct {
	GroupKey
	// Seen is when the gateway last reported it.
	Seen time.Time
	// Nodes counts nodes by state, Unjudged those without a verdict by the reason.
	Nodes, Unjudged map[string]int64
	// Medians holds the peers' median of each signal, in its unit, and Scales
	// their spread as a fraction of the signal's level. Below Thresholds, in the
	// signal's unit, a node is a straggler within a minute.
	Medians, Scales, Thresholds nodesignal.Values
	Numbers[ofGroup, *ofGroup]
}

const (
	// maxStates bounds the states and reasons of a group's counts.
	maxStates = 16
	maxState  = 32 // bytes of its name
	// GroupBytes is the memory of a group with its names, at most.
	GroupBytes = 4 << 10
)

// groups are few and change at each tick of the gateway, so they share one lock.
type groups struct {
	mu  sync.RWMutex
	all map[GroupKey]*Group // never changed in place
}

func (s *Store) expireGroups(before int64) {
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	maps.DeleteFunc(s.groups.all, func(k GroupKey, v *Group) bool {
		old := v.Seen.UnixMilli() < before
		if old {
			s.bytes.Give(k.Cluster, GroupBytes)
		}
		return old
	})
}

// UpdateGroup changes a copy of the group's view by f and publishes it. It
// returns false when there is no room for the group, which is counted.
func (s *Store) UpdateGroup(k GroupKey, now time.Time, f func(*GroupUpdate)) bool {
	if len(k.Cluster) > MaxName || len(k.Group) > MaxName {
		s.drop(DropText)
		return false
	}
	s.groups.mu.Lock()
	defer s.groups.mu.Unlock()
	old := s.groups.all[k]
	if old == nil {
		if !s.take(k.Cluster, GroupBytes) {
			return false
		}
		old = &Group{GroupKey: k}
	}
	next := *old
	next.Seen = now
	f(&GroupUpdate{g: &next})
	s.groups.all[k] = &next
	return true
}

// GroupUpdate changes one group's view.
type GroupUpdate struct{ g *Group }

// Set sets a number of the group. NaN ends it.
func (u *GroupUpdate) Set(f reading.Field, x float64) { u.g.set(f, x) }

// SetMedian sets the peers' median of a signal. NaN ends it.
func (u *GroupUpdate) SetMedian(s nodesignal.Signal, x float64) { set(&u.g.Medians, s, x) }

// SetScale sets the peers' spread of a signal. NaN ends it.
func (u *GroupUpdate) SetScale(s nodesignal.Signal, x float64) { set(&u.g.Scales, s, x) }

// SetThreshold sets the threshold of a signal. NaN ends it.
func (u *GroupUpdate) SetThreshold(s nodesignal.Signal, x float64) { set(&u.g.Thresholds, s, x) }

func set(values *nodesignal.Values, s nodesignal.Signal, x float64) {
	if !finite(x) {
		values.Known[s] = false
		return
	}
	values.Set(s, x)
}

// SetNodes sets the number of nodes in a state. NaN ends it.
func (u *GroupUpdate) SetNodes(state string, x float64) { count(&u.g.Nodes, state, x) }

// SetUnjudged sets the number of nodes without a verdict for a reason. NaN ends it.
func (u *GroupUpdate) SetUnjudged(reason string, x float64) {
	count(&u.g.Unjudged, reason, x)
}

// count changes a number in a copy of a map: readers may hold the map.
func count(of *map[string]int64, name string, x float64) {
	next := map[string]int64{}
	maps.Copy(next, *of)
	*of = next
	if !finite(x) {
		delete(next, name)
	} else if _, known := next[name]; known || len(next) < maxStates && len(name) <= maxState {
		next[name] = int64(x)
	}
}

// Group returns the view of a group.
func (s *Store) Group(k GroupKey) (*Group, bool) {
	s.groups.mu.RLock()
	defer s.groups.mu.RUnlock()
	g, ok := s.groups.all[k]
	return g, ok
}

// Groups returns the groups of these clusters, of all without any, in the order of their
// keys.
func (s *Store) Groups(clusters ...string) (list []*Group) {
	s.groups.mu.RLock()
	for k, g := range s.groups.all {
		if len(clusters) == 0 || slices.Contains(clusters, k.Cluster) {
			list = append(list, g)
		}
	}
	s.groups.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Group, b.Group))
	})
	return list
}
