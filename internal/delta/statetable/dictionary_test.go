// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func keyOf(n int) NodeKey {
	return KeyOf(binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// bring pushes a series of each of so many metrics.
func bring(t *Table, now time.Duration, key NodeKey, prefix string, metrics int, attrs ...Attr) {
	in(t, now, key, func(r *Report) {
		for i := range metrics {
			if r.Observe(new(double(Mix(uint64(i), 1), 1))); r.Fresh() {
				r.Describe(&Metric{Name: prefix + strconv.Itoa(i)}, attrs)
			}
		}
	})
}

func metricNames(t *Table, key NodeKey) (names []string) {
	for _, s := range t.Series(key) {
		names = append(names, s.Metric.Name)
	}
	return names
}

func dictionaryTable() *Table {
	return New(Settings{MaxNodes: 1000, MaxSeries: 10_000_000, TTL: 640 * time.Second, VanishedAfter: 60 * time.Second})
}

// TestInventedNamesLeaveRoomForTheNext: nodes that invent names, one or several, are not
// the reason why another's series cannot be declared gone.
func TestInventedNamesLeaveRoomForTheNext(t *testing.T) {
	for _, forgers := range []int{1, 30} {
		tb := dictionaryTable()
		for n := range forgers {
			bring(tb, 0, keyOf(n), fmt.Sprint("forged", n, "_"), 2*maxNodeNames)
		}
		unnamed := tb.Stats().Unnamed
		assert.GreaterOrEqual(t, unnamed, int64(forgers*maxNodeNames))
		bring(tb, 0, nodeB, "b", 50)
		assert.Equal(t, unnamed, tb.Stats().Unnamed)
		assert.Len(t, metricNames(tb, nodeB), 50)
	}
}

// TestOneClustersNamesLeaveRoom: of what clusters share of names each has its share,
// however many nodes it has. What it gives up is for all.
func TestOneClustersNamesLeaveRoom(t *testing.T) {
	tb := New(Settings{MaxNodes: 1000, MaxSeries: 10_000_000, ClusterShare: fairshare.Half, TTL: 640 * time.Second})
	now := time.Duration(0)
	push := func(cluster string, node, metrics int) {
		in(tb, now, keyOf(node), func(r *Report) {
			if r.Undescribed() {
				r.DescribeNode([]Attr{{Key: gpusemconv.AttrClusterName, Text: cluster}})
			}
			prefix := fmt.Sprint(cluster, node, "_")
			for i := range metrics {
				if r.Observe(new(double(Mix(uint64(i), 1), 1))); r.Fresh() {
					r.Describe(&Metric{Name: prefix + strconv.Itoa(i)}, []Attr{{Key: prefix + strconv.Itoa(i), Text: prefix}})
				}
			}
		})
	}
	for n := range 200 {
		push("greedy", n, 2*maxNodeNames)
	}
	d := tb.dict
	assert.Equal(t, (maxMetrics-catalogued)/2, d.metrics.room.Taken())
	assert.LessOrEqual(t, max(d.sets.room.Taken(), d.pairs.room.Taken()), maxSharedSets/2)
	assert.Equal(t, maxSharedKeys/2, d.keyRoom.Taken())
	unnamed := tb.Stats().Unnamed
	for n := range 10 {
		push("honest", 1000+n, 300)
		assert.Len(t, metricNames(tb, keyOf(1000+n)), 300)
	}
	assert.Equal(t, unnamed, tb.Stats().Unnamed)
	for range 3 {
		now += 700 * time.Second
		tb.Sweep(now)
	}
	assert.Empty(t, d.metrics.ids)
	for _, room := range []*fairshare.Ledger[uint64]{d.metrics.room, d.pairs.room, d.sets.room, d.keyRoom, d.bytes} {
		assert.Zero(t, room.Taken())
	}
}

// TestTheCatalogueAlwaysHasNames: no series that the product itself knows is hidden for
// the names that others made up before, however they describe it.
func TestTheCatalogueAlwaysHasNames(t *testing.T) {
	tb := dictionaryTable()
	for n := range 200 {
		bring(tb, 0, keyOf(n), fmt.Sprint("forged", n, "_"), 2*maxNodeNames)
	}
	number := func(m *Metric) uint16 { return tb.dict.metric(m, tb.lookup(keyOf(0))) }
	require.Zero(t, number(&Metric{Name: "mine"}))
	kinds := []Metric{{}, {Type: TypeSum}, {Type: TypeSum, Monotonic: true}, {Type: TypeHistogram}, {Type: TypeExponentialHistogram}, {Type: TypeSummary}}
	seen := map[uint16]bool{}
	for _, known := range reading.All() {
		for _, m := range kinds {
			m.Name, m.Unit = known.Name, known.Unit
			id := number(&m)
			require.NotZero(t, id, "%+v", m)
			seen[id] = true
			m.ScopeName, m.Description = "another", "as others see it"
			require.Equal(t, id, number(&m))
			m.Unit = "parsec"
			require.Zero(t, number(&m), "it has another name for readers")
		}
	}
	assert.Len(t, seen, len(reading.All())*len(kinds))
	assert.LessOrEqual(t, len(tb.dict.metrics.ids), maxMetrics)
}

// TestNamesThatNobodyHasLeaveRoom: whoever filled the dictionary is forgotten,
// and then others' series get the names that they had found no room for.
func TestNamesThatNobodyHasLeaveRoom(t *testing.T) {
	tb := dictionaryTable()
	const forgers = 200
	for n := range forgers {
		bring(tb, 0, keyOf(n), fmt.Sprint("forged", n, "_"), 2*maxNodeNames)
	}
	require.Greater(t, len(tb.dict.metrics.ids), maxMetrics-catalogued-100)
	bring(tb, 0, nodeB, "b", 50)
	require.Less(t, len(metricNames(tb, nodeB)), 50)

	for s := 160; s <= 1280; s += 160 {
		now := time.Duration(s) * time.Second
		bring(tb, now, nodeB, "b", 50)
		tb.Sweep(now)
	}
	bring(tb, 1281*time.Second, nodeB, "b", 50)
	assert.Len(t, metricNames(tb, nodeB), 50)
	assert.Len(t, tb.dict.metrics.ids, 50)
	for i, name := range metricNames(tb, nodeB) {
		assert.Equal(t, "b"+strconv.Itoa(i), name)
	}

	unnamed := tb.Stats().Unnamed
	bring(tb, 1282*time.Second, keyOf(0), "again", maxNodeNames)
	assert.Equal(t, unnamed, tb.Stats().Unnamed, "the numbers are used again")
	assert.LessOrEqual(t, len(tb.dict.metrics.slots), maxMetrics)
}

// TestALivingNodeGetsItsRoomBack: what a node brought counts while it is there.
func TestALivingNodeGetsItsRoomBack(t *testing.T) {
	tb := dictionaryTable()
	for round := range 4 {
		now := time.Duration(round) * 2000 * time.Second
		in(tb, now, nodeA, func(r *Report) {
			for i := range maxNodeNames {
				r.Observe(new(double(Mix(uint64(i), uint64(round)), 1)))
				r.Describe(&Metric{Name: fmt.Sprint("m", round, "_", i)}, []Attr{{Key: fmt.Sprint("k", round), Num: uint64(i), Type: AttrInt}})
			}
		})
		require.Zero(t, tb.Stats().Unnamed, round)
		var n *node
		for n = range tb.all() {
			assert.Equal(t, brought{metrics: maxNodeNames, pairs: maxValuesPerKey / 2, keys: 1, sets: maxNodeNames}, n.brought)
		}
		for s := range time.Duration(2) {
			now += (700 + s) * time.Second
			bring(tb, now, nodeA, "always", 0)
			tb.Sweep(now)
		}
		assert.Equal(t, brought{}, n.brought)
		assert.Empty(t, tb.dict.metrics.ids)
		assert.Empty(t, tb.dict.pairs.ids)
		assert.Empty(t, tb.dict.sets.ids)
		assert.Empty(t, tb.dict.keys)
	}
}

// TestOneNodesAttributesLeaveSharedRoom: nor does one take what nodes share of
// attributes.
func TestOneNodesAttributesLeaveSharedRoom(t *testing.T) {
	tb := dictionaryTable()
	in(tb, 0, nodeA, func(r *Report) {
		for i := range 20_000 {
			r.Observe(new(double(Mix(uint64(i), 1), 1)))
			r.Describe(&Metric{Name: "m"}, []Attr{
				{Key: "state", Num: uint64(i), Type: AttrInt},
				{Key: "k" + strconv.Itoa(i), Text: "v"},
			})
		}
	})
	d := tb.dict
	assert.Len(t, d.keys["state"].pairs, maxValuesPerKey/2)
	assert.Less(t, len(d.keys), maxSharedKeys/newcomersShare+1)
	shared := func(key, text string) bool {
		bring(tb, 0, nodeB, text, 1, Attr{Key: key, Text: text})
		return d.pairs.ids[Attr{Key: key, Text: text}] != 0
	}
	assert.True(t, shared("state", "healthy"))
	in(tb, 0, keyOf(1), func(r *Report) { r.DescribeNode([]Attr{{Key: "new", Text: "key"}}) })
	assert.Contains(t, d.keys, "new")
}

// TestNamesOutliveASweepWhileUnderWay: a name that is given to a node while a
// sweep goes through the others is not freed by it.
func TestNamesOutliveASweepWhileUnderWay(t *testing.T) {
	tb := dictionaryTable()
	attr := Attr{Key: "state", Text: "ok"}
	bring(tb, 0, nodeA, "m", 1, attr)
	marks := tb.dict.sweep() // has gone through node B, which has nothing
	tb.dict.release(marks)   // and A went meanwhile
	assert.Empty(t, tb.dict.metrics.ids)

	bring(tb, 0, keyOf(1), "m", 1, attr)
	marks = tb.dict.sweep()
	bring(tb, 0, nodeB, "m", 1, attr)
	tb.dict.release(marks)
	assert.Equal(t, []string{"m0"}, metricNames(tb, nodeB))
	for _, s := range tb.Series(nodeB) {
		assert.Equal(t, []Attr{attr}, s.Attrs)
	}
}

// TestNamesStayTrueWhileTheyChange: under sweeps that free and reports that
// bring, a series never has the name of another.
func TestNamesStayTrueWhileTheyChange(t *testing.T) {
	tb := New(Settings{MaxNodes: 1000, MaxSeries: 1_000_000, TTL: 64})
	var workers sync.WaitGroup
	var mu sync.Mutex
	var clock time.Duration
	now := func(step time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		clock += step
		return clock
	}
	for w := range 4 {
		workers.Go(func() {
			for i := range 2000 {
				name := fmt.Sprint("w", w, "_", i/20)
				key := KeyOf([]byte(name))
				bring(tb, now(1), key, name+".", 5, Attr{Key: "of", Text: name}, Attr{Key: fmt.Sprint("k", i%50), Text: name})
				for _, s := range tb.Series(key) {
					if !assert.Equal(t, name, s.Attrs[0].Text) || !assert.Contains(t, s.Metric.Name, name+".") {
						return
					}
				}
				if i%10 == w {
					tb.Sweep(now(5))
				}
			}
		})
	}
	workers.Wait()
	for s := range time.Duration(3) {
		tb.Sweep(now(200) + s)
	}
	assert.Zero(t, tb.Stats().Nodes)
	assert.Empty(t, tb.dict.metrics.ids)
	assert.Empty(t, tb.dict.pairs.ids)
}

// describeSets pushes series of so many sets of attributes, each with an id of the
// node's own, from the given number on.
func describeSets(t *testing.T, tb *Table, now time.Duration, node, from, sets int) {
	t.Helper()
	in(tb, now, keyOf(node), func(r *Report) {
		for i := range from + sets {
			if r.Observe(new(double(Mix(uint64(i), 1), 1))); r.Fresh() {
				r.Describe(&Metric{Name: "m"}, setOf(node, i))
			}
		}
	})
}

func setOf(node, i int) []Attr {
	return []Attr{
		{Key: "hw.id", Text: fmt.Sprint("GPU-", node, "-", i%8)},
		{Key: "port", Text: strconv.Itoa(i / 8 % 8)},
		{Key: "lane", Text: strconv.Itoa(i / 64 % 32)},
		{Key: "dir", Text: strconv.Itoa(i / 2048)},
	}
}

func requireSets(t *testing.T, tb *Table, node, sets int) {
	t.Helper()
	all := tb.Series(keyOf(node))
	require.Len(t, all, sets)
	for i := range all {
		if want := setOf(node, i); !slices.Equal(want, all[i].Attrs) {
			require.Equal(t, want, all[i].Attrs)
		}
	}
}

// Nodes that differ in the ids of their GPUs alone share their sets, also where one
// has more than another.
func TestNodesOfOneKindShareSets(t *testing.T) {
	tb := dictionaryTable()
	const nodes, sets = 100, 64
	for n := range nodes {
		describeSets(t, tb, 0, n, 0, sets-n%5)
		describeSets(t, tb, 0, n, sets-n%5, n%5)
	}
	for n := range nodes {
		requireSets(t, tb, n, sets)
		assert.Empty(t, tb.lookup(keyOf(n)).names.sets)
	}
	// The first nodes' ids are shared, as far as there is room for a key's values.
	assert.Less(t, len(tb.dict.sets.ids), 20*sets)
}

// Sets without room among the shared ones are the node's own; when nobody has those
// any more that took the room, the next node shares its sets.
func TestSetsFindRoomOrAreANodesOwn(t *testing.T) {
	tb := dictionaryTable()
	const nodes, sets = 40, 2000
	for n := range nodes {
		describeSets(t, tb, 0, n, 0, sets-n%7)
	}
	for n := range nodes {
		requireSets(t, tb, n, sets-n%7)
	}
	assert.LessOrEqual(t, len(tb.dict.sets.ids), maxSharedSets)
	assert.NotEmpty(t, tb.lookup(keyOf(0)).names.sets, "one node may bring so many")
	for s := 160; s <= 1280; s += 160 {
		now := time.Duration(s) * time.Second
		describeSets(t, tb, now, 1000, 0, 100)
		tb.Sweep(now)
		requireSets(t, tb, 1000, 100)
	}
	assert.LessOrEqual(t, len(tb.dict.sets.ids), 100)
	describeSets(t, tb, 1280*time.Second, 1001, 0, 100)
	requireSets(t, tb, 1001, 100)
	assert.Empty(t, tb.lookup(keyOf(1001)).names.sets)
}
