// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// views have 1,000 nodes with eight GPUs each. Their numbers have the digits that the agent's have.
func views(now time.Time) *fleetstate.Store {
	const nodes = 1000
	state := fleetstate.New(fleetstate.DefaultConfig())
	random := rand.New(rand.NewPCG(1, 1))
	for n := range nodes {
		u, _ := state.Begin(fleetstate.Key{Cluster: "training", Node: fmt.Sprintf("gpu-%04d.example", n)}, now)
		u.SetGroup("llama-70b//NVIDIA H100 80GB HBM3")
		for _, f := range fleetstate.NodeNumbers {
			u.Set(f, random.Float64())
		}
		for s := range nodesignal.Count {
			u.SetSignal(s, random.Float64())
		}
		for range 8 {
			i := u.GPU(fmt.Sprintf("GPU-%08x-aaaa-bbbb-cccc-%012x", random.Uint32(), random.Uint64()>>16))
			for _, f := range fleetstate.GPUNumbers {
				u.SetGPU(i, f, 1)
			}
			for _, f := range []reading.Field{reading.Utilization, reading.TensorActivity, reading.SMActivity} {
				u.SetGPU(i, f, math.Round(random.Float64()*100)/100)
			}
			u.SetGPU(i, reading.Power, math.Round(random.Float64()*700_000)/1000)
			u.SetGPU(i, reading.PowerLimit, 700)
			for _, f := range []reading.Field{reading.Temperature, reading.MemoryTemperature, reading.TemperatureMargin, reading.TemperatureLimit, reading.Health} {
				u.SetGPU(i, f, float64(random.IntN(100)))
			}
			u.SetGPU(i, reading.SMClock, float64(random.IntN(1980))*1e6)
			u.SetGPU(i, reading.SMClockLimit, 1980e6)
			u.SetGPU(i, reading.MemoryUsed, float64(random.IntN(80<<10)<<20))
			u.SetGPU(i, reading.MemoryLimit, 80<<30)
		}
		u.Commit(now)
	}
	return state
}

// BenchmarkRound writes rounds.
func BenchmarkRound(b *testing.B) {
	now := time.Now()
	state := views(now)
	s := open(b, testConfig(b))
	for b.Loop() {
		now = now.Add(time.Millisecond)
		if err := s.WriteRound(b.Context(), now, fleethistory.Rows(state, now)); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil { // the log is in the file now
		b.Fatal(err)
	}
	b.ReportMetric(float64(s.Status().Bytes)/float64(b.N), "B/round")
}

// BenchmarkQuestion asks about an hour.
func BenchmarkQuestion(b *testing.B) {
	now := time.Now()
	state, s := views(now), open(b, testConfig(b))
	for i := range 120 {
		if err := s.WriteRound(b.Context(), now.Add(time.Duration(i)*30*time.Second), fleethistory.Rows(state, now)); err != nil {
			b.Fatal(err)
		}
	}
	hour := fleethistory.Query{Start: now, End: now.Add(time.Hour), Limit: 100_000}
	power, node := hour, hour
	power.Metrics, node.Hosts = []string{"hw.power"}, []string{"gpu-0500.example"}
	steps := node
	steps.Step = 30 * time.Second
	for name, ask := range map[string]func() error{
		"one metric by host": func() error {
			_, err := fleethistory.Aggregate(b.Context(), s, &power, fleethistory.ByHost)
			return err
		},
		"all metrics by cluster": func() error {
			_, err := fleethistory.Aggregate(b.Context(), s, &hour, fleethistory.ByCluster)
			return err
		},
		"hosts": func() error {
			_, _, err := fleethistory.ListRecorded(b.Context(), s, &hour, false)
			return err
		},
		"a page": func() error {
			_, _, err := fleethistory.Telemetry(b.Context(), s, &hour)
			return err
		},
		"one node": func() error {
			_, _, err := fleethistory.Telemetry(b.Context(), s, &node)
			return err
		},
		"steps of a node": func() error {
			_, err := fleethistory.Steps(b.Context(), s, &steps)
			return err
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := ask(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
