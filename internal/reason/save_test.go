// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const savedAs = "facts"

// perPiece are as many values as a gateway writes at once.
const perPiece = 20_000

func saved(s *Store, asked []Name, now time.Time, values int) (state []byte) {
	c := packed.NewWriter(nil, savedAs, SaveVersion)
	next := s.Save(c, asked, now)
	for more := true; more; {
		more = next(values)
		state = append(state, c.Flush()...)
	}
	return append(state, c.Seal()...)
}

func restored(t require.TestingT, cfg Config, state []byte, now time.Time) *Store {
	c, err := packed.NewReader(state, savedAs, SaveVersion)
	require.NoError(t, err)
	s := New(cfg)
	s.Restore(c, now)
	require.NoError(t, c.End())
	return s
}

// world is what nodes tell, each all of it with each report.
type world struct {
	t     *rapid.T
	nodes []toldNode
}

type toldNode struct {
	gpus  []toldGPU
	ports [2]toldPort
}

type toldGPU struct {
	up     Up
	fields map[reading.Field]float64
	xids   map[uint16]float64
}

type toldPort struct {
	up     float64
	fields map[reading.Field]float64
	errors map[string]float64
}

func newWorld(t *rapid.T, nodes int) *world {
	w := &world{t: t, nodes: make([]toldNode, nodes)}
	for i := range w.nodes {
		n := &w.nodes[i]
		n.gpus = make([]toldGPU, 3)
		for g := range n.gpus {
			n.gpus[g] = toldGPU{up: UpAnswers, xids: map[uint16]float64{48: 1}, fields: map[reading.Field]float64{
				reading.SMClock: 1.9e9, reading.SMClockLimit: 1.98e9, reading.PCIeGeneration: 5, reading.PCIeGenerationLimit: 5,
				reading.PCIeWidth: 16, reading.PCIeWidthLimit: 16, reading.NVLinksUp: 18, reading.MemoryShare: 0.7, reading.Temperature: 60,
				reading.Utilization: 1, reading.Power: 650, reading.PowerLimit: 700, reading.Processes: 1,
			}}
			for f := firstFlag; f < firstGauge; f++ {
				n.gpus[g].fields[f] = 0
			}
			for f := firstCounter; f <= lastCounter; f++ {
				n.gpus[g].fields[f] = 1000
			}
		}
		for p := range n.ports {
			n.ports[p] = toldPort{1, map[reading.Field]float64{reading.NetworkBandwidth: 50e9, reading.NetworkPackets: 1e9, reading.NetworkRetransmits: 10, reading.NetworkWait: 5}, map[string]float64{
				"symbol_error": 40, "excessive_buffer_overrun_errors": 2, "link_downed": 1,
			}}
		}
	}
	return w
}

func nodeOf(i int) string { return fmt.Sprint("n", i) }

func (w *world) push(s *Store, now time.Time) {
	for i := range w.nodes {
		n, err := s.Node("c", nodeOf(i), now)
		require.NoError(w.t, err)
		for g := range w.nodes[i].gpus {
			told := &w.nodes[i].gpus[g]
			at, err := n.GPU(gpuID(g))
			require.NoError(w.t, err)
			n.PutUp(at, told.up)
			for f := firstFlag; f <= lastCounter; f++ {
				if v, ok := told.fields[f]; ok {
					n.Put(at, f, v)
				}
			}
			for _, code := range []uint16{48, 79, 94, 74} {
				if v, ok := told.xids[code]; ok {
					require.NoError(w.t, n.PutXid(at, code, v, epoch))
				}
			}
		}
		for f, v := range map[reading.Field]float64{reading.CPUPressure: 0.02, reading.HostMemory: 0.4, reading.GPUsExpected: 3} {
			n.PutNode(f, v)
		}
		for p := range w.nodes[i].ports {
			told, id := &w.nodes[i].ports[p], fmt.Sprint("mlx5_", p)
			require.NoError(w.t, n.PutNetwork(id, reading.NetworkUp, "", 0, told.up))
			for k, f := range []reading.Field{reading.NetworkBandwidth, reading.NetworkPackets, reading.NetworkRetransmits, reading.NetworkWait} {
				require.NoError(w.t, n.PutNetwork(id, f, "", uint32(k), told.fields[f]))
			}
			for k, kind := range []string{"symbol_error", "excessive_buffer_overrun_errors", "link_downed"} {
				require.NoError(w.t, n.PutNetwork(id, reading.NetworkErrors, kind, uint32(10+k), told.errors[kind]))
			}
		}
	}
}

// happens has something happen to one of the nodes. Common is what healthy nodes have too.
func (w *world) happens(common bool) {
	n := &w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")]
	g := &n.gpus[rapid.IntRange(0, len(n.gpus)-1).Draw(w.t, "gpu")]
	p := &n.ports[rapid.IntRange(0, 1).Draw(w.t, "port")]
	what := rapid.IntRange(0, 7).Draw(w.t, "what")
	if common && rapid.Bool().Draw(w.t, "common") {
		what += 8
	}
	switch what {
	case 0, 1:
		f := firstFlag + reading.Field(rapid.IntRange(0, numFlags-2).Draw(w.t, "flag"))
		g.fields[f] = 1 - g.fields[f]
	case 2:
		g.fields[firstCounter+reading.Field(rapid.IntRange(0, numCounters-1).Draw(w.t, "counter"))] += 400
	case 3:
		g.xids[rapid.SampledFrom([]uint16{48, 79, 94, 74}).Draw(w.t, "code")]++
	case 4:
		g.up = rapid.SampledFrom([]Up{UpAnswers, UpLost, UpSilent}).Draw(w.t, "up")
	case 5:
		g.fields[reading.PCIeWidth] = rapid.SampledFrom([]float64{16, 8, 4}).Draw(w.t, "width")
		g.fields[reading.NVLinksUp] = rapid.SampledFrom([]float64{18, 18, 12}).Draw(w.t, "links")
	case 6:
		p.up = rapid.SampledFrom([]float64{0, 1, 1}).Draw(w.t, "link")
		p.fields[reading.NetworkBandwidth] = rapid.SampledFrom([]float64{50e9, 25e9}).Draw(w.t, "rate")
	case 7:
		p.errors[rapid.SampledFrom([]string{"symbol_error", "excessive_buffer_overrun_errors", "link_downed"}).Draw(w.t, "kind")] += 900
	case 8, 9:
		g.fields[reading.PowerCap] = 1 - g.fields[reading.PowerCap]
	case 10:
		g.fields[reading.Processes] = rapid.SampledFrom([]float64{1, 2}).Draw(w.t, "processes")
		g.fields[reading.PowerLimit] = rapid.SampledFrom([]float64{700, 500}).Draw(w.t, "limit")
	case 11:
		g.fields[reading.SMClock] = rapid.SampledFrom([]float64{1.9e9, 1.2e9}).Draw(w.t, "clock")
		g.fields[reading.PCIeGeneration] = rapid.SampledFrom([]float64{5, 3}).Draw(w.t, "generation")
	default:
		p.fields[reading.NetworkPackets] += 1e6
		p.fields[reading.NetworkRetransmits] += 200
		p.fields[reading.NetworkWait] += 50
	}
}

// TestReasonsOutliveARestart: a store that was saved and restored gives each node the reason,
// with the evidence, that the store gives which never ended. Nothing happens in the pause. Of
// what healthy nodes have too only those know who are asked for.
func TestReasonsOutliveARestart(t *testing.T) {
	cfg := Config{MaxNodes: 100, MaxBytes: 1 << 30, Retention: time.Hour}
	explained := map[Reason]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 5)
		all := rapid.Bool().Draw(t, "all are asked for")
		goesOn, now := New(cfg), epoch
		step := func(stores ...*Store) {
			for _, s := range stores {
				w.push(s, now)
				s.Sweep(now)
			}
			now = now.Add(10 * time.Second)
		}
		play := func(steps, quiet int, stores ...*Store) {
			for i := range steps {
				if i >= quiet && rapid.IntRange(0, 5).Draw(t, "happens") == 0 {
					w.happens(all)
				}
				step(stores...)
			}
		}
		play(rapid.IntRange(14, 80).Draw(t, "before"), 13, goesOn)
		var asked []Name
		if all {
			for i := range w.nodes {
				asked = append(asked, Name{"c", nodeOf(i)})
			}
		}
		state := saved(goesOn, asked, now, rapid.IntRange(1, 1000).Draw(t, "values of a piece"))
		play(rapid.IntRange(0, 10).Draw(t, "pause"), 10, goesOn)
		again := restored(t, cfg, state, now)
		quiet := 1 // the first report tells what there was
		if !all {
			quiet = 14 // nodes that were not saved are known for two minutes then
		}
		play(rapid.IntRange(1, 60).Draw(t, "after"), quiet, goesOn, again)
		names := func(yield func(string) bool) {
			for i := range w.nodes {
				if !yield(nodeOf(i)) {
					return
				}
			}
		}
		now = now.Add(-10 * time.Second)
		for i := range w.nodes {
			since := now.Add(-time.Duration(rapid.IntRange(0, 900).Draw(t, "since")) * time.Second)
			want := goesOn.Explain("c", nodeOf(i), names, since, now)
			got := again.Explain("c", nodeOf(i), names, since, now)
			if !all { // of a node that was not saved, nobody knows how old other evidence is
				want.Evidence, got.Evidence = nil, nil
			}
			require.Equal(t, want, got, nodeOf(i))
			explained[want.Reason]++
		}
	})
	assert.Greater(t, len(explained), 5, "%v", explained)
}

// TestWhatIsSavedIsBounded: those that are asked for come first, a node of which nothing was
// noted for an hour is left out, and so is one that only tells what healthy nodes tell.
func TestWhatIsSavedIsBounded(t *testing.T) {
	s := testStore(3 * MaxSaved)
	names := func(now time.Time, asked ...Name) []string {
		to := restored(t, s.cfg, saved(s, asked, now, perPiece), now)
		var all []string
		for _, n := range to.all {
			all = append(all, n.key.node)
		}
		slices.Sort(all)
		return all
	}
	capped := addNode(t, s, "capped", epoch)
	capped.Put(addGPU(t, capped, "g"), reading.PowerCap, 1)
	assert.Empty(t, names(epoch))
	assert.Equal(t, []string{"capped"}, names(epoch, Name{"c", "capped"}, Name{"c", "capped"}, Name{"c", "nobody"}))
	for i := range 2 * MaxSaved {
		n := addNode(t, s, fmt.Sprintf("n%04d", i), epoch)
		n.Put(addGPU(t, n, "g"), reading.RemapFailed, 1)
	}
	got := names(epoch.Add(time.Hour), Name{"c", "capped"}, Name{"c", "n0511"})
	assert.Len(t, got, MaxSaved)
	assert.Contains(t, got, "capped")
	assert.Contains(t, got, "n0511")
	assert.Empty(t, names(epoch.Add(time.Hour+time.Second)))
	small := restored(t, Config{MaxNodes: 10, MaxBytes: 1 << 30, Retention: time.Hour}, saved(s, nil, epoch, 700), epoch)
	assert.LessOrEqual(t, small.Len(), 10)
}

// TestAPieceIsBounded: however much is known of the nodes, a piece has so many values and the
// rest of a node, and passes over so many others.
func TestAPieceIsBounded(t *testing.T) {
	s := testStore(3000)
	for i := range 2000 {
		n := addNode(t, s, fmt.Sprintf("n%04d", i), epoch)
		if i >= 1900 {
			fillHistories(t, n)
		}
	}
	c := packed.NewWriter(nil, savedAs, SaveVersion)
	next := s.Save(c, nil, epoch)
	node := s.all[1999].values()
	c.Flush()
	const values = 4000
	pieces, longest := 0, 0
	for more := true; more; pieces++ {
		more = next(values)
		longest = max(longest, len(c.Flush()))
	}
	const valueBytes = 9 // of a number that is no small one
	assert.Less(t, longest, (values+node)*valueBytes)
	assert.Greater(t, longest, 2*node)
	assert.Greater(t, pieces, 2000*seenValues/values, "nodes that are passed over count")
}

// TestAGPUThatLeftInThePause: it was lost, and nobody tells of it any more.
func TestAGPUThatLeftInThePause(t *testing.T) {
	for _, comes := range []bool{true, false} {
		s := testStore(5)
		n := addNode(t, s, "n", epoch)
		n.PutUp(addGPU(t, n, "lost"), UpLost)
		n.PutUp(addGPU(t, n, "other"), UpAnswers)
		again := restored(t, s.cfg, saved(s, nil, epoch, 1), epoch)
		for sec := range 30 {
			now := epoch.Add(time.Duration(10*sec) * time.Second)
			n := addNode(t, again, "n", now)
			n.PutUp(addGPU(t, n, "other"), UpAnswers)
			if comes {
				n.PutUp(addGPU(t, n, "lost"), UpLost)
			}
			again.Sweep(now)
			f := again.Explain("c", "n", func(func(string) bool) {}, now, now)
			if sec < 11 || comes {
				require.Equal(t, Reason("gpu_lost"), f.Reason, sec)
			} else if sec > 12 {
				require.Equal(t, Unexplained, f.Reason, sec)
			}
		}
	}
}

// FuzzRestore: whatever the bytes say, the store is bounded and explains.
func FuzzRestore(f *testing.F) {
	s := testStore(1)
	n, _ := s.Node("c", "n", epoch)
	gpu, _ := n.GPU("g")
	n.Put(gpu, reading.RemapFailed, 1)
	n.PutUp(gpu, UpLost)
	_ = n.PutXid(gpu, 79, 1, epoch)
	_ = n.PutNetwork("p", reading.NetworkErrors, "symbol_error", 1, 1)
	_ = n.PutNetwork("p", reading.NetworkErrors, "symbol_error", 1, 9)
	_ = n.PutNetwork("p", reading.NetworkUp, "", 1, 0)
	f.Add(packedtest.Body(savedAs, saved(s, nil, epoch, 1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := packed.NewReader(packedtest.Frame(savedAs, SaveVersion, body), savedAs, SaveVersion)
		require.NoError(t, err)
		s := New(Config{MaxNodes: 20, MaxBytes: 1 << 20, Retention: time.Hour})
		s.Restore(c, epoch)
		require.LessOrEqual(t, s.Len(), 20)
		for _, n := range slices.Clone(s.all) {
			require.LessOrEqual(t, n.seen, seconds(epoch))
			now := epoch.Add(3 * time.Minute)
			heard, err := s.Node(n.key.cluster, n.key.node, now)
			require.NoError(t, err)
			require.Same(t, n, heard)
			for i := range n.gpus {
				n.Put(i, reading.HWThermal, 1)
				_ = n.PutXid(i, 79, 3, epoch)
			}
			s.Sweep(now)
			s.Explain(n.key.cluster, n.key.node, func(func(string) bool) {}, now, now)
		}
		saved(s, nil, epoch, 3)
	})
}

// BenchmarkSave writes a store of 10,000 nodes of eight GPUs, of which more have news than
// are saved: each has a counter or two that grew, or as many as are kept of a node.
func BenchmarkSave(b *testing.B) {
	const nodes = 10_000
	for name, full := range map[string]bool{"news": false, "full-histories": true} {
		b.Run(name, func(b *testing.B) {
			s := testStore(nodes)
			for i := range nodes {
				n, err := s.Node("c", fmt.Sprintf("gpu-node-%05d", i), epoch)
				require.NoError(b, err)
				for g := range 8 {
					at, err := n.GPU(fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-%04d-9e3d8d2b8a%02d", i, g))
					require.NoError(b, err)
					n.PutUp(at, UpAnswers)
					if i < 2*MaxSaved {
						n.Put(at, reading.HWThermal, 1)
						n.Put(at, reading.PCIeReplays, 0)
						n.Put(at, reading.PCIeReplays, float64(i))
					}
				}
				if full && i < 2*MaxSaved {
					fillHistories(b, n)
				}
			}
			b.ReportAllocs()
			var bytes int
			var longest []float64 // of each save
			for b.Loop() {
				bytes = 0
				c := packed.NewWriter(nil, savedAs, SaveVersion)
				began := time.Now()
				next := s.Save(c, nil, epoch)
				most := time.Since(began)
				for more := true; more; {
					began := time.Now()
					more = next(perPiece)
					most = max(most, time.Since(began))
					bytes += len(c.Flush())
				}
				longest = append(longest, most.Seconds()*1e3)
			}
			slices.Sort(longest)
			b.ReportMetric(float64(bytes)/MaxSaved, "B/saved-node")
			b.ReportMetric(longest[len(longest)/2], "ms-longest-piece")
		})
	}
}

// fillHistories has all counters of a node grow in each minute that is kept.
func fillHistories(t require.TestingT, n *Node) {
	for k := range maxMoved - len(n.moved) {
		port, kind := fmt.Sprint("mlx5_", k/len(networkKinds)), networkKinds[k%len(networkKinds)].name
		for minute := range historyMinutes {
			n.seen = seconds(epoch.Add(time.Duration(minute-historyMinutes) * time.Minute))
			require.NoError(t, n.PutNetwork(port, reading.NetworkErrors, kind, uint32(k), 1e3*float64(k+minute)))
		}
	}
	n.seen = seconds(epoch)
	require.Len(t, n.moved, maxMoved)
}
