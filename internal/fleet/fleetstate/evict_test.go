// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestNewNodeInPlaceOfTheOneMissingLongest(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxNodes, cfg.ClusterShare = 3, 1
	s := New(cfg)
	f := NewFeed(s)
	put(t, s, "c", "young", t0.Add(2*time.Minute), nil)
	put(t, s, "c", "old", t0, nil)
	put(t, s, "c", "middle", t0.Add(time.Minute), nil)
	w := f.Watch(Filter{})
	defer w.Close()
	now := t0.Add(time.Minute)
	f.Advance(now)
	w.Full(now, func(View) bool { return true })
	begin := func(name string, at time.Time) bool { return try(s, "c", name, at, nil) }
	assert.False(t, begin("a", now), "nobody is missing yet")
	now = now.Add(evictCheck - time.Millisecond)
	assert.False(t, begin("a", now), "all are looked through once in a while only")
	now = t0.Add(time.Hour)
	assert.True(t, begin("a", now))
	f.Advance(now)
	assert.Equal(t, []Key{{"c", "old"}}, changes(t, w, now).removed)
	put(t, s, "c", "middle", now, nil) // it is back, after the look
	assert.True(t, begin("b", now))
	assert.False(t, begin("d", now), "nobody is missing any more")
	views, total := s.List(&Filter{}, now, 0, 10)
	assert.Equal(t, []string{"c/a", "c/b", "c/middle"}, names(views))
	assert.Equal(t, []int{3, 3}, []int{total, s.Nodes()})
	assert.Equal(t, map[string]int64{"max_nodes": 3, "evicted_node": 2}, dropped(s))
}
