// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"errors"
	"strings"
	"time"
)

// Why there is no place.
var (
	ErrTooManyClusters = errors.New("more clusters than `max_clusters`")
	ErrTooManyGroups   = errors.New("more peer groups than `max_groups`")
	ErrTooManyNodes    = errors.New("more nodes than `max_nodes`")
	ErrClusterGroups   = errors.New("cluster holds its share of `max_groups`")
	ErrClusterNodes    = errors.New("cluster holds its share of `max_nodes`")
)

// Places counts the clusters, peer groups and nodes that are kept. Of groups and nodes a
// cluster has no more than half of what the others do not have. The zero value has none.
type Places struct {
	MaxClusters, MaxGroups, MaxNodes int
	// TTL without a word is silence.
	TTL time.Duration

	clusters      map[string]*places
	groups, nodes int
	hearing       time.Time
}

type places struct {
	since, seen time.Time
	groups      map[string]int // nodes of each
	nodes       int
}

// Hear notes that a node of a cluster that has places said something.
func (p *Places) Hear(cluster string, now time.Time) { p.clusters[cluster].seen = now }

// Deaf notes that nobody listened until now: that time is no silence.
func (p *Places) Deaf(now time.Time) { p.hearing = now }

// Enter takes the place of one more node in a group, or says why there is none.
func (p *Places) Enter(cluster, group string, now time.Time) error {
	c := p.clusters[cluster]
	switch {
	case c == nil && len(p.clusters) >= p.MaxClusters:
		return ErrTooManyClusters
	case p.nodes >= p.MaxNodes:
		return ErrTooManyNodes
	case c == nil:
		c = &places{since: now, seen: now, groups: make(map[string]int)}
	}
	if c.nodes >= Limit(Half, p.MaxNodes, p.nodes-c.nodes) {
		return ErrClusterNodes
	}
	if err := p.room(c, group); err != nil {
		return err
	}
	if p.clusters == nil {
		p.clusters = make(map[string]*places)
	}
	if c.nodes == 0 {
		p.clusters[strings.Clone(cluster)] = c
	}
	p.add(c, group, 1)
	return nil
}

// Move takes a node from one group to another, or says why there is no place.
func (p *Places) Move(cluster, from, to string) error {
	c := p.clusters[cluster]
	if c.groups[from] > 1 { // else it leaves a place
		if err := p.room(c, to); err != nil {
			return err
		}
	}
	p.add(c, from, -1)
	p.add(c, to, 1)
	return nil
}

// Leave gives the place of a node back.
func (p *Places) Leave(cluster, group string) {
	c := p.clusters[cluster]
	if p.add(c, group, -1); c.nodes == 0 {
		delete(p.clusters, cluster)
	}
}

// Silent names the cluster to be forgotten to make room. The cluster was silent for the
// TTL, and is never own. Of several the one with the shortest life goes: a made-up name was
// heard of once. It must not cost an established cluster its place in an outage.
func (p *Places) Silent(own string, now time.Time) (name string, ok bool) {
	var life time.Duration
	for cluster, c := range p.clusters {
		lived, last := c.seen.Sub(c.since), c.seen
		if last.Before(p.hearing) {
			last = p.hearing
		}
		if cluster == own || now.Sub(last) <= p.TTL {
			continue
		}
		if !ok || lived < life || lived == life && cluster < name {
			name, life, ok = cluster, lived, true
		}
	}
	return name, ok
}

func (p *Places) room(c *places, group string) error {
	switch {
	case c.groups[group] > 0:
		return nil
	case p.groups >= p.MaxGroups:
		return ErrTooManyGroups
	case len(c.groups) >= Limit(Half, p.MaxGroups, p.groups-len(c.groups)):
		return ErrClusterGroups
	}
	return nil
}

func (p *Places) add(c *places, group string, nodes int) {
	before := len(c.groups)
	c.groups[group] += nodes
	if c.groups[group] == 0 {
		delete(c.groups, group)
	}
	p.groups += len(c.groups) - before
	c.nodes += nodes
	p.nodes += nodes
}
