// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

// TestBytesBoundTheMemory fills a store with nodes of several kinds until it takes no
// more: it holds no more than MaxBytes, the greedy cluster holds its share, and
// another one finds room.
func TestBytesBoundTheMemory(t *testing.T) {
	text := func(i, size int) string { return strings.Repeat("x", size-8) + fmt.Sprintf("%08d", i) }
	for name, fill := range map[string]func(u *Update, i int){
		"names": func(*Update, int) {},
		"long texts": func(u *Update, i int) {
			u.SetFacts(Facts{HostID: text(i, MaxName), JobID: text(i, MaxName), JobRole: text(i, MaxName)})
		},
		"many GPUs": func(u *Update, i int) {
			for g := range 128 {
				at := u.GPU(text(1000*i+g, 40))
				u.SetGPU(at, reading.Power, float64(g))
				u.SetInfo(at, Info{g, text(i, MaxName), text(i, MaxName), text(i, MaxName), text(g, MaxName)})
			}
		},
		"many details": func(u *Update, i int) {
			at := u.GPU(text(i, 40))
			for d := range maxReasons {
				u.SetReason(at, HealthReason{text(d, 9), text(d, 9)}, true)
				u.SetXid(at, Xid{Code: d, Class: text(d, 20), Count: 1}, true)
			}
			for d := range 64 {
				u.SetHolder(at, reading.Holder{Pod: text(d, 50), Namespace: text(d, 9), Container: text(d, 9), Shared: true}, true)
			}
			for d := range maxThrottles {
				u.SetThrottle(at, text(d, 30), true)
			}
		},
	} {
		cfg := DefaultConfig()
		cfg.MaxBytes = 16 << 20
		before, s := heap.Live(), New(cfg)
		short := map[string]int{}
		s.OnShort(func(cluster string) { short[cluster]++ })
		put := func(cluster string, i int) {
			try(s, cluster, fmt.Sprintf("node-%06d.example.com", i), t0, func(u *Update) { fill(u, i) })
		}
		for i := 0; short["greedy"] < 100; i++ {
			put("greedy", i)
		}
		assert.InDelta(t, int(cfg.MaxBytes)/4*3, s.bytes.Held("greedy"), 256<<10, name)
		for i := 0; short["honest"] < 100; i++ {
			put("honest", i)
		}
		assert.InDelta(t, int(cfg.MaxBytes)/8, s.bytes.Held("honest"), 256<<10, name)
		grown, held := heap.Live()-before, s.bytes.Taken()
		t.Logf("%s: %d bytes held for %d counted, %d nodes", name, grown, held, s.Nodes())
		assert.Less(t, grown, held, name)
		assert.Less(t, held, int(cfg.MaxBytes), name)
		s.Expire(t0.Add(2 * cfg.NodeExpiry))
		assert.Zero(t, s.bytes.Taken(), name)
	}
}

// A node that finds no bytes to grow stays as it was, and goes on being seen.
func TestANodeThatFindsNoBytesStays(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxBytes = 3 * leastNode
	s := New(cfg)
	put(t, s, "c", "a", t0, func(u *Update) { u.Set(reading.NodeHealthScore, 0.5) })
	put(t, s, "c", "a", t0.Add(time.Second), func(u *Update) {
		u.Set(reading.NodeHealthScore, 0.25)
		for g := range 100 {
			u.GPU(strconv.Itoa(g))
		}
	})
	assert.False(t, s.UpdateGroup(GroupKey{"c", "g"}, t0, func(*GroupUpdate) {}), "a group takes as much as two nodes")
	v, ok := s.Node(Key{"c", "a"}, t0)
	require.True(t, ok)
	assert.Empty(t, v.GPUs)
	assert.InDelta(t, 0.5, *v.Values.Get(reading.NodeHealthScore), 0)
	put(t, s, "c", "a", t0.Add(2*time.Second), func(u *Update) { u.Set(reading.NodeHealthScore, 0.75) })
	v, _ = s.Node(Key{"c", "a"}, t0)
	assert.InDelta(t, 0.75, *v.Values.Get(reading.NodeHealthScore), 0)
}

// TestMadeUpNodesGiveWay: under pressure a node that reported once is forgotten once
// it is missing, and a node that had been there for long is not.
func TestMadeUpNodesGiveWay(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxBytes = 1 << 20
	s := New(cfg)
	put(t, s, "honest", "a", t0, func(*Update) {})
	at := t0.Add(2 * cfg.MissingAfter)
	put(t, s, "honest", "a", at, func(*Update) {})
	for i := range 2000 {
		try(s, strconv.Itoa(i), "n", at, nil)
	}
	require.Zero(t, s.Expire(at.Add(cfg.MissingAfter)))
	_, ok := s.Begin(Key{"new", "n"}, at.Add(cfg.MissingAfter))
	require.False(t, ok)
	at = at.Add(cfg.MissingAfter + time.Millisecond)
	require.Positive(t, s.Expire(at))
	require.Equal(t, int(cfg.MaxBytes)*3/4/leastNode, s.Nodes(), "until the pressure is gone")
	_, ok = s.Node(Key{"honest", "a"}, at)
	require.True(t, ok, "it was there for long")
	put(t, s, "new", "n", at, func(*Update) {})
}
