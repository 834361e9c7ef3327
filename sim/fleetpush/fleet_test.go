// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newFleet(t testing.TB, cfg Config) *Fleet {
	t.Helper()
	cfg.Start = start
	f, err := New(cfg)
	require.NoError(t, err)
	return f
}

func decode(t testing.TB, b []byte) pmetric.Metrics {
	t.Helper()
	r := pmetricotlp.NewExportRequest()
	require.NoError(t, r.UnmarshalProto(b))
	return r.Metrics()
}

// A report is what the Collector writes of the same metrics.
func TestReportsAreTheCollectorsBytes(t *testing.T) {
	f := newFleet(t, Config{Nodes: 3, GPUs: 8, Load: fleetsim.Training, Seed: 7})
	for tick := range 20 {
		for i := range 3 {
			b, err := f.Next(i, 1, start.Add(time.Duration(tick)*10*time.Second), nil)
			require.NoError(t, err)
			again, err := pmetricotlp.NewExportRequestFromMetrics(decode(t, b)).MarshalProto()
			require.NoError(t, err)
			require.Equal(t, again, b)
		}
	}
}

func TestTheSameSeedGivesTheSameBytes(t *testing.T) {
	cfg := Config{Nodes: 2, GPUs: 2, Load: fleetsim.Training, Seed: 7}
	a, b := newFleet(t, cfg), newFleet(t, cfg)
	cfg.Seed = 8
	other := newFleet(t, cfg)
	next := func(f *Fleet, i, tick int) []byte {
		out, err := f.Next(i, 1, start.Add(time.Duration(tick)*10*time.Second), nil)
		require.NoError(t, err)
		return out
	}
	for tick := range 30 {
		// The order of the nodes does not matter.
		a0, a1 := next(a, 0, tick), next(a, 1, tick)
		b1, b0 := next(b, 1, tick), next(b, 0, tick)
		assert.Equal(t, a0, b0)
		assert.Equal(t, a1, b1)
		o0 := next(other, 0, tick)
		assert.NotEqual(t, a0, o0)
		for _, id := range append(gpuIDs(decode(t, a1)), gpuIDs(decode(t, o0))...) {
			assert.NotContains(t, gpuIDs(decode(t, a0)), id, "GPUs of other nodes and other seeds are others")
		}
	}
}

// A node is its physics and its agent's state; reports are made anew each time.
func TestANodeIsSmall(t *testing.T) {
	for name, c := range map[string]struct {
		raw  bool
		most float64
	}{"raw": {true, 9 << 10}, "agent": {false, 20 << 10}} {
		t.Run(name, func(t *testing.T) {
			const nodes = 2000
			before := heap.Live()
			f := newFleet(t, Config{Nodes: nodes, Load: fleetsim.Training, Raw: c.raw, Step: time.Second})
			var buf []byte
			for i := range nodes {
				var err error
				buf, err = f.Next(i, 1, start, buf[:0])
				require.NoError(t, err)
			}
			each := float64(heap.Live()-before) / nodes
			runtime.KeepAlive(f)
			t.Logf("%.0f bytes for each node of 8 GPUs", each)
			assert.Less(t, each, c.most)
		})
	}
}
