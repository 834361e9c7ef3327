// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// testStore has room for that many nodes of one cluster.
func testStore(nodes int) *Store {
	return New(Config{MaxNodes: 2 * nodes, MaxBytes: 1 << 30, Retention: time.Hour})
}

func addNode(t *testing.T, s *Store, name string, now time.Time) *Node {
	t.Helper()
	n, err := s.Node("c", name, now)
	require.NoError(t, err)
	return n
}

func addGPU(t *testing.T, n *Node, id string) int {
	t.Helper()
	g, err := n.GPU(id)
	require.NoError(t, err)
	return g
}

// The window begins a minute before the accusation does. Whether a counter grew
// in it is exact; how much, to the minute.
func TestWindowOfACounter(t *testing.T) {
	since := epoch.Add(10 * time.Minute)
	for _, tt := range []struct {
		name string
		at   []time.Duration // of one error each, from epoch
		want float64
	}{
		{"before the window", []time.Duration{8*time.Minute + 59*time.Second}, 0},
		{"at its beginning", []time.Duration{9 * time.Minute}, 1},
		{"in it", []time.Duration{11 * time.Minute}, 1},
		{"before and in it", []time.Duration{5 * time.Minute, 9*time.Minute + 30*time.Second, 12 * time.Minute}, 2},
		{"before it, and long ago in the same minute of the ring", []time.Duration{10*time.Minute - 16*time.Minute, 10 * time.Minute}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := epoch.Add(-time.Hour)
			n := addNode(t, testStore(1), "n", start)
			total := 5.0
			n.Put(addGPU(t, n, "g"), reading.ECCUncorrected, total)
			for _, at := range tt.at {
				n.hear(seconds(epoch.Add(at)))
				total++
				n.Put(0, reading.ECCUncorrected, total)
			}
			v, ok := n.value(ECCUncorrected, 0, newWindow(since, epoch.Add(13*time.Minute)))
			assert.True(t, ok)
			assert.InDelta(t, tt.want, v, 0)
		})
	}
}

// The window begins within a minute, and that whole minute counts. A long window
// counts the last 16 minutes of growth.
func TestErrorOfTheAmount(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	g := addGPU(t, n, "g")
	n.Put(g, reading.PCIeReplays, 0)
	for m := range 60 {
		n.hear(seconds(epoch.Add(time.Duration(m) * time.Minute)))
		n.Put(g, reading.PCIeReplays, float64(m+1))
	}
	end := epoch.Add(59 * time.Minute)
	// Errors at minutes 56 to 59; the window begins half a minute after 56.
	v, _ := n.value(PCIeReplays, g, newWindow(epoch.Add(57*time.Minute+30*time.Second), end))
	assert.InDelta(t, 4, v, 0)
	w := newWindow(epoch, end)
	v, _ = n.value(PCIeReplays, g, w)
	assert.InDelta(t, 16, v, 0)
	assert.InDelta(t, 16, w.minutes(), 0, "so that the rate stays right")
}

func TestCounterReset(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	g := addGPU(t, n, "g")
	for _, v := range []float64{1000, 1001, 2, 3} {
		n.Put(g, reading.NVLinkReplay, v)
	}
	v, ok := n.value(NVLinkReplays, g, newWindow(epoch, epoch))
	assert.True(t, ok)
	assert.InDelta(t, 4, v, 0, "1, then 2 since the reset, then 1")

	n.Drop(g, reading.NVLinkReplay)
	n.Put(g, reading.NVLinkReplay, 50)
	v, _ = n.value(NVLinkReplays, g, newWindow(epoch, epoch))
	assert.InDelta(t, 4, v, 0, "a series that comes back begins where it is")
}

func TestAFlagCountsWhileItHeld(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	g := addGPU(t, n, "g")
	n.Put(g, reading.SWThermal, 1)
	// Nothing changed for ten minutes, so that nothing was sent.
	n.hear(seconds(epoch.Add(10 * time.Minute)))
	n.Put(g, reading.SWThermal, 0)

	held := func(since time.Duration) float64 {
		v, ok := n.value(SWThermal, g, newWindow(epoch.Add(since), epoch.Add(20*time.Minute)))
		assert.True(t, ok)
		return v
	}
	assert.InDelta(t, 1, held(10*time.Minute), 0)
	assert.InDelta(t, 1, held(11*time.Minute), 0, "it ended where the window begins")
	assert.InDelta(t, 0, held(12*time.Minute), 0)
	n.Drop(g, reading.SWThermal)
	_, ok := n.value(SWThermal, g, newWindow(epoch, epoch))
	assert.False(t, ok)
}

func TestXidsThatAreHistory(t *testing.T) {
	grown := func(n *Node) float64 { return n.growth(XidOffBus, 0, window{}) }
	t.Run("there at first sight", func(t *testing.T) {
		n := addNode(t, testStore(1), "n", epoch)
		g := addGPU(t, n, "g")
		n.hear(seconds(epoch.Add(119 * time.Second)))
		require.NoError(t, n.PutXid(g, 79, 3, epoch))
		assert.InDelta(t, 0, grown(n), 0)
		require.NoError(t, n.PutXid(g, 79, 4, epoch))
		assert.InDelta(t, 1, grown(n), 0)
	})
	t.Run("new", func(t *testing.T) {
		n := addNode(t, testStore(1), "n", epoch)
		n.hear(seconds(epoch.Add(120 * time.Second)))
		require.NoError(t, n.PutXid(addGPU(t, n, "g"), 79, 3, epoch))
		assert.InDelta(t, 3, grown(n), 0)
	})
	t.Run("a receiver that was started again", func(t *testing.T) {
		n := addNode(t, testStore(1), "n", epoch)
		g := addGPU(t, n, "g")
		require.NoError(t, n.PutXid(g, 79, 1, epoch))
		require.NoError(t, n.PutXid(g, 79, 1, epoch))
		assert.InDelta(t, 0, grown(n), 0)
		require.NoError(t, n.PutXid(g, 79, 1, epoch.Add(time.Minute)))
		assert.InDelta(t, 1, grown(n), 0)
	})
}

// The series that said lost may end after the series that says ok comes, or before.
func TestUpMovesBetweenSeries(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	g := addGPU(t, n, "g")
	n.PutUp(g, UpLost)
	n.DropUp(g, UpAnswers)
	assert.Equal(t, UpLost, n.gpus[g].up)
	n.DropUp(g, UpLost)
	assert.Equal(t, UpUnknown, n.gpus[g].up)
}

func TestNamesThatAreNoneAreRejected(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	_, err := n.GPU("")
	require.ErrorIs(t, err, ErrName)
	_, err = n.GPU(string(make([]byte, 254)))
	require.ErrorIs(t, err, ErrName)
	require.ErrorIs(t, n.PutBandwidth("", 1), ErrName)
	for f := range NumFacts {
		v, _, ok := n.worst(f, newWindow(epoch, epoch))
		assert.True(t, !ok || v == 0, "%s %v", f, v)
	}
}

// A node that claims any number of GPUs has 64, and costs the others nothing.
func TestANodeWithTooManyGPUs(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	refused := 0
	for i := range 100_000 {
		if _, err := n.GPU(fmt.Sprintf("GPU-x%d", i)); err != nil {
			require.ErrorIs(t, err, ErrTooManyDevices)
			refused++
		}
		if i%1000 == 0 {
			_ = n.PutBandwidth(fmt.Sprintf("x%d", i), 1)
		}
		_ = n.PutNetworkErrors("mlx5_0", uint32(i), 1)
		_ = n.PutXid(i%len(n.gpus), 79, float64(i), epoch)
	}
	assert.Equal(t, 100_000-(MaxGPUs-fleetGPUs), refused)
	assert.Len(t, n.gpus, MaxGPUs)
	assert.Len(t, n.adapters, MaxAdapters)
	assert.Len(t, n.series, maxSeries)
	assert.LessOrEqual(t, len(n.moved), maxMoved)

	f.put(f.node(1), 3, reading.PowerBrake, 1)
	got := f.store.Explain("c", "n1", f.names(), f.now, f.now)
	assert.Equal(t, Reason("hw_power_brake"), got.Reason)
	assert.Equal(t, gpuID(3), got.GPU)
}

// A place is free again an hour after its GPU went silent, and what was known
// of the old one is not held against the new.
func TestAReplacedGPU(t *testing.T) {
	n := addNode(t, testStore(1), "n", epoch)
	for i := range MaxGPUs {
		n.Put(addGPU(t, n, gpuID(i)), reading.ECCUncorrected, 1)
	}
	for i := range MaxGPUs {
		n.hear(seconds(epoch.Add(gpuQuiet * time.Second)))
		g := addGPU(t, n, gpuID(i))
		if i != 9 {
			n.Put(g, reading.ECCUncorrected, 2)
		}
	}
	require.NoError(t, n.PutXid(3, 79, 1, epoch))
	n.add(9, ECCUncorrected, 5)
	g := addGPU(t, n, "GPU-new")
	assert.Equal(t, 9, g)
	_, ok := n.value(ECCUncorrected, g, window{})
	assert.False(t, ok)
	assert.Zero(t, n.growth(ECCUncorrected, g, window{}))
	assert.InDelta(t, 1, n.growth(ECCUncorrected, 8, window{}), 0)
	assert.InDelta(t, 1, n.growth(XidOffBus, 3, window{}), 0)
	_, err := n.GPU("GPU-newer")
	require.ErrorIs(t, err, ErrTooManyDevices)
}

func TestTooManyNodes(t *testing.T) {
	s := testStore(2)
	addNode(t, s, "a", epoch)
	addNode(t, s, "b", epoch)
	_, err := s.Node("c", "d", epoch)
	require.ErrorIs(t, err, ErrClusterNodes)
	for _, name := range []string{"x", "y"} {
		_, err = s.Node(name, "d", epoch)
		require.NoError(t, err, "others find room")
	}
	_, err = s.Node("z", "d", epoch)
	require.ErrorIs(t, err, ErrTooManyNodes)
	for range 32 {
		s.Sweep(epoch.Add(2 * time.Hour))
	}
	require.Zero(t, s.held.Taken()+s.bytes.Taken())
	addNode(t, s, "a", epoch)
	_, err = s.Node("c", "a", epoch)
	require.NoError(t, err)
	for _, names := range [][2]string{{"", "n"}, {"c", ""}, {"c", string(make([]byte, 254))}, {string(make([]byte, 254)), "n"}} {
		_, err = s.Node(names[0], names[1], epoch)
		require.ErrorIs(t, err, ErrName)
	}
}

func TestSweep(t *testing.T) {
	s := testStore(1000)
	for i := range 1000 {
		addNode(t, s, fmt.Sprintf("n%d", i), epoch)
	}
	for i := range 10 {
		s.Touch("c", fmt.Sprintf("n%d", i*100), epoch.Add(time.Second))
	}
	for range 32 {
		s.Sweep(epoch.Add(time.Hour))
	}
	assert.Equal(t, 1000, s.Len(), "an hour is not more than an hour")
	for range 32 {
		s.Sweep(epoch.Add(time.Hour + time.Second))
	}
	assert.Equal(t, 10, s.Len())
	assert.Equal(t, 10, len(s.nodes)) //nolint:testifylint // Len prints all of them
	s.Touch("c", "n1", epoch)
	assert.Equal(t, 10, s.Len(), "what is not known is not made known")
	for range 32 {
		s.Sweep(epoch.Add(3 * time.Hour))
	}
	assert.Zero(t, s.Len())
	s.Sweep(epoch.Add(3 * time.Hour))
}

// A clock that was set back does not make a node old.
func TestTimeDoesNotRunBackwards(t *testing.T) {
	s := testStore(10)
	n := addNode(t, s, "a", epoch)
	addNode(t, s, "a", epoch.Add(-2*time.Hour))
	s.Sweep(epoch.Add(time.Minute))
	assert.Equal(t, 1, s.Len())
	assert.Equal(t, seconds(epoch), n.seen)
}

func TestGPUs(t *testing.T) {
	s := testStore(10)
	n := addNode(t, s, "a", epoch)
	_, ok := s.GPUs("c", "a")
	assert.False(t, ok)
	_, ok = s.GPUs("c", "b")
	assert.False(t, ok)
	n.PutNode(reading.GPUsFound, 7)
	count, ok := s.GPUs("c", "a")
	assert.True(t, ok)
	assert.Equal(t, 7, count)
	n.PutNode(reading.GPUsExpected, 8)
	count, _ = s.GPUs("c", "a")
	assert.Equal(t, 8, count)
}

// Peers beyond the bound cost nothing: they are not even asked for.
func TestPeersAreBounded(t *testing.T) {
	s := testStore(1000)
	for i := range 1000 {
		addNode(t, s, fmt.Sprintf("n%d", i), epoch).PutNode(reading.CPUPressure, 0.5)
	}
	asked := 0
	s.Explain("c", "n0", func(yield func(string) bool) {
		for i := range 1000 {
			asked++
			if !yield(fmt.Sprintf("n%d", i)) {
				return
			}
		}
	}, epoch, epoch)
	assert.Equal(t, MaxPeers+1, asked)
	assert.Empty(t, s.peers.nodes, "what is swept is not held on to")
}

// An explanation leaves nothing behind for the next one.
func TestExplainTwice(t *testing.T) {
	f := newFleet(t)
	f.put(f.node(0), 1, reading.PowerCap, 1)
	first := f.explain()
	f.store.Explain("c", "n0", slices.Values([]string{}), f.now, f.now)
	assert.Equal(t, first, f.explain())
}

func FuzzNode(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 0xff, 0x80, 0x7f})
	f.Add([]byte{7, 0x80, 0xf0, 0x7f, 4, 0, 0, 0, 3, 79, 1, 255})
	f.Fuzz(func(t *testing.T, script []byte) {
		s := testStore(4)
		now := epoch
		next := func() byte {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return b
		}
		values := []float64{0, 1, 0.5, 3, 1000, 1e9, -50, 1 << 53, math.SmallestNonzeroFloat64}
		for len(script) > 0 {
			now = now.Add(time.Duration(int8(next())) * 10 * time.Second)
			n, err := s.Node("c", string('a'+rune(next()%6)), now)
			if err != nil {
				continue
			}
			v := values[int(next())%len(values)]
			g, err := n.GPU(string('A' + rune(next()%70)))
			if err != nil {
				continue
			}
			id := gpuID(int(next() % 40))
			const fields, ofNode = lastCounter - firstFlag + 1, lastOfNode - firstOfNode + 1
			switch field := reading.Field(next()); {
			case field < fields:
				n.Put(g, firstFlag+field, v)
			case field < 2*fields:
				n.Drop(g, firstFlag+field-fields)
			case field < 80:
				_ = n.PutXid(g, uint16(next()), v, now)
			case field < 100:
				_ = n.PutNetworkErrors(id, uint32(next()), v)
			case field < 120:
				_ = n.PutBandwidth(id, v)
			case field < 130:
				n.DropBandwidth(id)
			case field < 160:
				n.PutNode(firstOfNode+reading.Field(next())%ofNode, v)
			case field < 170:
				n.DropNode(firstOfNode + reading.Field(next())%ofNode)
			case field < 200:
				n.PutUp(g, Up(next()%4))
			case field < 220:
				n.DropUp(g, Up(next()%4))
			default:
				s.Sweep(now)
			}
		}
		got := s.Explain("c", "a", slices.Values([]string{"b", "c", "d", "a"}), now.Add(-time.Minute), now)
		if got.Reason == "" || got.Advice == "" || (got.Reason == Unexplained) != (len(got.Evidence) == 0) {
			t.Fatalf("%+v", got)
		}
		for _, e := range got.Evidence {
			if math.IsNaN(e.Value) || math.IsInf(e.Value, 0) || math.IsNaN(e.Peers) {
				t.Fatalf("%+v", e)
			}
		}
	})
}

// An Xid and the flags each have a byte.
func TestWhatFitsIntoAByte(t *testing.T) {
	for code := range xidFacts {
		assert.LessOrEqual(t, code, uint16(math.MaxUint8))
	}
	assert.LessOrEqual(t, numFlags, 8)
}

// TestClones are two machines with one name. A board that was swapped is none.
func TestClones(t *testing.T) {
	for _, tt := range []struct {
		name  string
		swap  bool // the first machine's GPUs say nothing from then on
		found float64
		want  bool
	}{
		{"two machines", false, 2, true},
		{"swapped boards", true, 2, false},
		{"boards that were added", false, 4, false},
		{"a node that does not say how many it has", false, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := testStore(1)
			push := func(at time.Duration, found float64, ids ...string) {
				n := addNode(t, s, "n", epoch.Add(at))
				for _, id := range ids {
					n.PutUp(addGPU(t, n, id), UpAnswers)
				}
				n.PutNode(reading.GPUsFound, found)
			}
			push(0, 2, "GPU-a", "GPU-b", "MIG-a")
			push(10*time.Second, tt.found, "GPU-c", "GPU-d")
			assert.False(t, s.Cloned("c", "n"), "those of before may be gone")
			push(20*time.Second, tt.found, "GPU-c", "GPU-d", "MIG-c")
			if !tt.swap {
				push(20*time.Second, tt.found, "GPU-a", "GPU-b")
			}
			assert.Equal(t, tt.want, s.Cloned("c", "n"))
			push(6*time.Minute, tt.found, "GPU-c", "GPU-d")
			assert.False(t, s.Cloned("c", "n"), "one of them is gone")
			for at := 6*time.Minute + 10*time.Second; tt.found > 0 && at < 7*time.Minute; at += 10 * time.Second {
				push(at, 1, "GPU-c")
				assert.False(t, s.Cloned("c", "n"), "one GPU answers no more")
			}
			push(8*time.Minute, 1, "GPU-e")
			push(8*time.Minute, 2, "GPU-c", "GPU-d")
			assert.True(t, s.Cloned("c", "n"), "a machine of fewer GPUs")
		})
	}
}
