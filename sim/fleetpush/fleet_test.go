// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
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
