// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var writeFacts = flag.Bool("write-facts", false, "write testdata/facts/vN.json of a version that has none yet")

// keptFacts are the facts as a gateway of a version wrote them, and what it knew by them.
type keptFacts struct {
	At    time.Time
	State []byte
	Known map[string]knownOf
}

type knownOf struct {
	Reason Reason
	GPU    string
	Value  float64
	Since  time.Time
}

// keptFaults are one of each kind of fact that is saved. Some are over at the next report;
// of the others it tells again.
var keptFaults = map[string]struct {
	apply func(f *fleet, n *Node, g int)
	lasts bool
}{
	"a flag":    {apply: set(reading.HWThermal, 1)},
	"a counter": {apply: set(reading.PCIeReplays, 5000)},
	"an Xid":    {apply: setXid(94)},
	"a GPU":     {apply: setUp(UpLost), lasts: true},
	"a gauge": {lasts: true, apply: func(f *fleet, n *Node, g int) {
		f.put(n, g, reading.PCIeWidthLimit, 16)
		f.put(n, g, reading.PCIeWidth, 4)
	}},
	"a port":          {apply: port(reading.NetworkUp, "", 0)},
	"a port's errors": {apply: port(reading.NetworkErrors, "excessive_buffer_overrun_errors", 60)},
}

func port(field reading.Field, kind string, v float64) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		require.NoError(f.t, n.PutNetwork("mlx5_1", field, kind, 1, v))
	}
}

func (f *fleet) named(name string) *Node {
	f.t.Helper()
	n, err := f.store.Node("c", name, f.now)
	require.NoError(f.t, err)
	return n
}

// known is what the store knows of the nodes that have faults.
func (f *fleet) known(since time.Time) map[string]knownOf {
	all := map[string]knownOf{}
	for name := range keptFaults {
		got := f.store.Explain("c", name, f.names(), since, f.now)
		k := knownOf{Reason: got.Reason, GPU: got.GPU}
		if len(got.Evidence) > 0 {
			k.Value, k.Since = got.Evidence[0].Value, got.Evidence[0].Since.UTC()
		}
		all[name] = k
	}
	return all
}

// faulty is a fleet whose nodes with faults have just got them.
func faulty(t *testing.T) *fleet {
	f := newFleet(t)
	f.now = epoch
	for name := range keptFaults {
		f.healthy(f.named(name))
	}
	f.now = epoch.Add(10 * time.Minute)
	for i := range fleetNodes {
		f.healthy(f.node(i))
	}
	for name, fault := range keptFaults {
		fault.apply(f, f.named(name), 3)
	}
	return f
}

// knownAfter is what a store knows that goes on with a state, by the next reports.
func knownAfter(t *testing.T, state []byte, at time.Time) map[string]knownOf {
	f := newFleet(t)
	f.now = at.Add(20 * time.Second)
	f.store = restored(t, f.store.cfg, state, f.now)
	for i := range fleetNodes {
		f.healthy(f.node(i))
	}
	for name, fault := range keptFaults {
		if n := f.named(name); fault.lasts {
			fault.apply(f, n, 3)
		} else {
			f.healthy(n)
		}
	}
	return f.known(at)
}

func factsFile(version int) string {
	return filepath.Join("testdata", "facts", fmt.Sprintf("v%d.json", version))
}

// TestFactsOfAllVersionsAreRead: what any release wrote explains the same to this one.
func TestFactsOfAllVersionsAreRead(t *testing.T) {
	if *writeFacts {
		writeFactsFile(t)
	}
	for version := 1; version <= SaveVersion; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			text, err := os.ReadFile(factsFile(version))
			require.NoError(t, err, "a new version needs its file: go test -run %s -write-facts", t.Name())
			var kept keptFacts
			require.NoError(t, json.Unmarshal(text, &kept))
			require.Len(t, kept.Known, len(keptFaults))
			assert.Equal(t, kept.Known, knownAfter(t, kept.State, kept.At))
		})
	}
}

// writeFactsFile never overwrites: a file is what a release wrote, for ever.
func writeFactsFile(t *testing.T) {
	file := factsFile(SaveVersion)
	_, err := os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist, "%s is there: what a release wrote stays what it is", file)
	f := faulty(t)
	kept := keptFacts{At: f.now, State: saved(f.store, nil, f.now, perPiece), Known: f.known(f.now)}
	for name, k := range kept.Known {
		require.NotEqual(t, Unexplained, k.Reason, name)
	}
	text, err := json.MarshalIndent(kept, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, append(text, '\n'), 0o644))
}

// TestFactsOfAnotherRelease: its tables have other orders, and names that this one does not
// know.
func TestFactsOfAnotherRelease(t *testing.T) {
	f := faulty(t)
	state := saved(f.store, nil, f.now, perPiece)
	want := f.known(f.now)
	reverse := func(t *tables) {
		for _, list := range [...][]string{t.flags, t.steps, t.facts, t.kinds} {
			slices.Reverse(list)
		}
	}
	rename := func(list []string, names ...string) {
		for i, name := range list {
			if slices.Contains(names, name) {
				list[i] = "of_tomorrow_" + name
			}
		}
	}
	for name, tt := range map[string]struct {
		change  func(*tables)
		unknown string // node that nobody explains
	}{
		"as it is":     {change: func(*tables) {}},
		"other orders": {change: reverse},
		"more names": {change: func(t *tables) {
			for _, list := range [...]*[]string{&t.flags, &t.steps, &t.facts, &t.kinds} {
				*list = slices.Insert(*list, 0, "of_tomorrow")
			}
		}},
		"a flag that is not known, and other orders": {unknown: "a flag", change: func(t *tables) {
			reverse(t)
			rename(t.flags, HWThermal.String())
		}},
		"a counter that is not known": {unknown: "a counter", change: func(t *tables) { rename(t.facts, PCIeReplays.String()) }},
		"a kind that is not known":    {unknown: "a port's errors", change: func(t *tables) { rename(t.kinds, "excessive_buffer_overrun_errors") }},
	} {
		t.Run(name, func(t *testing.T) {
			want := maps.Clone(want)
			if tt.unknown != "" {
				want[tt.unknown] = knownOf{Reason: Unexplained}
			}
			assert.Equal(t, want, knownAfter(t, byTables(t, state, tt.change), f.now))
		})
	}
}

// byTables is a state as a release writes it whose tables are changed: names keep their
// values, at their new places, or under new names at the old ones.
func byTables(t *testing.T, state []byte, change func(*tables)) []byte {
	from, err := packed.NewReader(state, savedAs, SaveVersion)
	require.NoError(t, err)
	to := packed.NewWriter(nil, savedAs, SaveVersion)
	var was tables
	was.pack(from)
	is := tables{slices.Clone(was.flags), slices.Clone(was.steps), slices.Clone(was.facts), slices.Clone(was.kinds)}
	change(&is)
	is.pack(to)
	// moved is where a name of before is now.
	moved := func(was, is []string, i int) int {
		return slices.IndexFunc(is, func(name string) bool { return strings.TrimPrefix(name, "of_tomorrow_") == was[i] })
	}
	for {
		var more bool
		from.Bool(&more)
		if to.Bool(&more); !more {
			break
		}
		for range 2 {
			var text string
			from.Text(&text, maxName)
			to.Text(&text, maxName)
		}
		for range 3 {
			var at uint32
			packed.Uint(from, &at)
			packed.Uint(to, &at)
		}
		for range to.Size(from.Size(0)) {
			x, y := was.newGPU(), is.newGPU()
			x.pack(from)
			held, began, worsened, gauges := y.held, y.began, y.worsened, y.gauges
			y = x
			y.held, y.began, y.worsened, y.gauges, y.on = held, began, worsened, gauges, 0
			for i := range was.flags {
				k := moved(was.flags, is.flags, i)
				y.held[k], y.began[k] = x.held[i], x.began[i]
				y.on |= x.on >> i & 1 << k
			}
			for i := range was.steps {
				k := moved(was.steps, is.steps, i)
				y.worsened[k], y.gauges[k] = x.worsened[i], x.gauges[i]
			}
			y.pack(to)
		}
		for range to.Size(from.Size(0)) {
			var a adapter
			var down bool
			a.pack(from, &down)
			a.pack(to, &down)
		}
		for range to.Size(from.Size(0)) {
			var x series
			x.pack(from)
			x.fact = Fact(moved(was.facts, is.facts, int(x.fact)))
			x.pack(to)
		}
		for range to.Size(from.Size(0)) {
			var h history
			h.pack(from)
			h.fact, h.kind = Fact(moved(was.facts, is.facts, int(h.fact))), uint8(moved(was.kinds, is.kinds, int(h.kind)))
			h.pack(to)
		}
	}
	require.NoError(t, from.End())
	return slices.Clone(to.Seal())
}
