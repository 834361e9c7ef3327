// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/reason"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

var everyCause = flag.Bool("all", false, "measure all causes (some minutes)")

const (
	poll        = 10 * time.Second
	nodesPerJob = 8
	gpusPerNode = 4
	warm        = 20 * time.Minute // until the gateway knows its nodes
	lasts       = 12 * time.Minute // a fault
	calm        = 10 * time.Minute // after it, until the next of the job
	grace       = 2 * time.Minute  // what has begun to be seen at its end
)

// cause is a kind of fault, and what its reason may be. Severities are drawn evenly from
// low to high, which cost from 8 % of the speed, the least loss to be found, to most of it.
type cause struct {
	kind      fleetsim.Kind
	low, high float64
	reasons   []reason.Reason
}

func xid(code float64) cause {
	return cause{fleetsim.XidError, code, code, []reason.Reason{reason.Reason(fmt.Sprint("xid_", code))}}
}

var causes = []cause{
	{fleetsim.ThermalThrottle, 0.5, 0.85, []reason.Reason{"hw_thermal", "sw_thermal"}},
	{fleetsim.PowerLimit, 0.25, 0.6, []reason.Reason{"sw_power_cap"}},
	{fleetsim.ECC, 0.1, 0.79, []reason.Reason{"ecc_uncorrected"}},
	{fleetsim.LostGPU, 1, 1, []reason.Reason{"gpu_lost"}},
	{fleetsim.SlowNode, 0.08, 0.5, []reason.Reason{reason.Unexplained}},
	{fleetsim.Drift, 0.5, 0.9, []reason.Reason{reason.Unexplained}},
	{fleetsim.Flapping, 0.1, 0.5, []reason.Reason{reason.Unexplained}},
	{fleetsim.Brake, 0.1, 0.7, []reason.Reason{"hw_power_brake"}},
	{fleetsim.ClockLock, 0.1, 0.6, []reason.Reason{"sm_clock_low"}},
	{fleetsim.ECC, 0.8, 0.9, []reason.Reason{"remap_failed"}},
	{fleetsim.NVLink, 0.35, 1, []reason.Reason{"nvlink_down"}},
	{fleetsim.NVLinkErrors, 0.35, 0.9, []reason.Reason{"nvlink_errors", "nvlink_errors_rising", "nvlink_crc"}},
	{fleetsim.PCIe, 0.3, 0.9, []reason.Reason{"pcie_width"}},
	{fleetsim.PCIeSlow, 0.2, 0.8, []reason.Reason{"pcie_generation"}},
	{fleetsim.CPU, 0.2, 0.8, []reason.Reason{"cpu_contention"}},
	{fleetsim.Neighbour, 0.1, 0.6, []reason.Reason{"noisy_neighbour"}},
	{fleetsim.XidError, 79, 79, []reason.Reason{"gpu_lost", "xid_79"}},
	xid(48), xid(94), xid(95), xid(74), xid(145), xid(46), xid(62), xid(109), xid(119), xid(120), xid(140),
}

// TestReasons gives faults to the nodes of simulated jobs and looks whether the first
// reason for a slow node is right. Reports, the agents' and the gateway's part are the
// real ones; time is simulated.
func TestReasons(t *testing.T) {
	list := causes[:4]
	if *everyCause {
		list = slices.Repeat(causes, 3)
	}
	for _, many := range []int{1, 3} { // from three nodes on it is an incident of their group
		if many > 1 && !*everyCause {
			break
		}
		t.Run(strconv.Itoa(many), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { measureReasons(t, list, many) })
		})
	}
}

// measureReasons gives each cause to some nodes of a job, one after the other and seven
// to a job.
func measureReasons(t *testing.T, causes []cause, nodes int) {
	const each = 7
	rng, jobs := rand.New(rand.NewPCG(1, 7)), (len(causes)+each-1)/each
	cfg := fleetpush.Config{
		Nodes: nodesPerJob * jobs, GPUs: gpusPerNode, Jobs: jobs, Seed: 1, Runs: 2 * time.Hour, Pause: 4 * time.Minute,
		Cluster: "lab", Step: poll, Start: time.Now(), Raw: true,
	}
	type injection struct {
		fleetsim.Fault
		cause *cause
		nodes []string
		got   []string
		delay time.Duration
	}
	var all []*injection
	var order []int // of a job's nodes, so that each has its turn
	for i := range causes {
		c, job := &causes[i], i/each
		from := warm + time.Duration(i%each)*(lasts+calm)
		f := fleetsim.Fault{Kind: c.kind, GPU: rng.IntN(gpusPerNode), From: from, Until: from + lasts, Severity: c.low + (c.high-c.low)*rng.Float64()}
		if f.Validate(0, gpusPerNode) != nil {
			f.GPU = fleetsim.AllGPUs
		}
		if i%each == 0 || len(order) < nodes {
			order = rng.Perm(nodesPerJob)
		}
		in := &injection{Fault: f, cause: c}
		for _, n := range order[:nodes] {
			in.nodes = append(in.nodes, fleetpush.NodeName(job*nodesPerJob+n))
			f.Node = job*nodesPerJob + n
			cfg.Faults = append(cfg.Faults, f)
		}
		order = order[nodes:]
		all = append(all, in)
	}
	unasked := 0
	onOnset := func(o onset) {
		i := slices.IndexFunc(all, func(in *injection) bool {
			strange := slices.ContainsFunc(o.nodes, func(n string) bool { return !slices.Contains(in.nodes, n) })
			return o.at >= in.From && o.at <= in.Until+grace && len(o.nodes) > 0 && !strange
		})
		if i < 0 {
			unasked++
			t.Logf("false: %+v", o)
			return
		}
		in := all[i]
		if in.got == nil {
			in.delay = o.at - in.From
		}
		in.got = append(in.got, o.reason)
	}
	runFleet(t, cfg, warm+each*(lasts+calm), onOnset)

	raised, named, total := 0, 0, 0
	var delays []time.Duration
	for _, in := range all {
		if len(in.got) > 0 {
			raised++
			delays = append(delays, in.delay)
		}
		for _, got := range in.got {
			total++
			if slices.Contains(in.cause.reasons, reason.Reason(got)) {
				named++
			} else {
				t.Logf("wrong: %s of severity %.2f called %s", in.Kind, in.Severity, got)
			}
		}
	}
	slices.Sort(delays)
	require.NotEmpty(t, delays)
	t.Logf("%d of %d faults raised, after %s in the median; the reason of %d of %d episodes was right; %d false episodes",
		raised, len(all), delays[len(delays)/2], named, total, unasked)
	if !*everyCause {
		assert.Equal(t, []int{len(all), total, 0}, []int{raised, named, unasked})
	}
}

type onset struct {
	at     time.Duration // since the fleet began
	reason string
	nodes  []string
}

// runFleet runs nodes with the straggler processor of their agents, one for all since it
// keeps its nodes apart, and that of a gateway.
func runFleet(t *testing.T, cfg fleetpush.Config, d time.Duration, onOnset func(onset)) {
	t.Helper()
	began, factory := time.Now(), stragglerprocessor.NewFactory()
	nodes, err := fleetpush.New(cfg)
	require.NoError(t, err)
	sink, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error { onsets(ld, began, onOnset); return nil })
	require.NoError(t, err)
	view := &fleetView{state: fleetstate.New(fleetstate.DefaultConfig())}
	host := viewHost{component.MustNewID("fleet_view"): view}
	fleet := fleetviewexporter.NewFactory()
	exporter, err := fleet.CreateMetrics(t.Context(), exportertest.NewNopSettings(fleet.Type()), fleet.CreateDefaultConfig())
	require.NoError(t, err)
	shipped := func(file string) component.Config {
		conf, err := confmaptest.LoadConf("../../../configs/" + file)
		require.NoError(t, err)
		sub, err := conf.Sub("processors::straggler")
		require.NoError(t, err)
		to := factory.CreateDefaultConfig().(*stragglerprocessor.Config)
		require.NoError(t, sub.Unmarshal(to))
		// The gateway judges by itself, and knows nothing of an earlier run.
		to.DefaultCluster, to.ThresholdExtension, to.StateDirectory = cfg.Cluster, nil, ""
		return to
	}
	set, config := processortest.NewNopSettings(factory.Type()), shipped("gateway.yaml")
	gateway, err := factory.CreateMetrics(t.Context(), set, config, exporter)
	require.NoError(t, err)
	logs, err := factory.CreateLogs(t.Context(), set, config, sink)
	require.NoError(t, err)
	agents, err := factory.CreateMetrics(t.Context(), set, shipped("agent.yaml"), gateway)
	require.NoError(t, err)
	for _, c := range []component.Component{exporter, logs, gateway, agents} {
		require.NoError(t, c.Start(t.Context(), host))
		defer func() { assert.NoError(t, c.Shutdown(context.WithoutCancel(t.Context()))) }()
	}
	gap := poll / time.Duration(nodes.Nodes()) // nodes do not push all at once
	for end := began.Add(d); time.Now().Before(end); {
		for i := range nodes.Nodes() {
			body, err := nodes.Next(i, 1, time.Now(), nil)
			require.NoError(t, err)
			report := pmetricotlp.NewExportRequest()
			require.NoError(t, report.UnmarshalProto(body))
			require.NoError(t, agents.ConsumeMetrics(t.Context(), report.Metrics()))
			time.Sleep(gap)
		}
		time.Sleep(poll - gap*time.Duration(nodes.Nodes()))
	}
}

// fleetView stands for the fleet_view extension, without its server.
type fleetView struct {
	component.StartFunc
	component.ShutdownFunc

	state *fleetstate.Store
}

func (v *fleetView) State() *fleetstate.Store { return v.state }

type viewHost map[component.ID]component.Component

func (h viewHost) GetExtensions() map[component.ID]component.Component { return h }

func onsets(ld plog.Logs, began time.Time, onOnset func(onset)) {
	for _, rl := range ld.ResourceLogs().All() {
		for _, lr := range rl.ScopeLogs().At(0).LogRecords().All() {
			phase, ok := lr.Attributes().Get(gpusemconv.AttrEpisodePhase)
			if lr.EventName() != gpusemconv.EventStraggler || !ok || phase.Str() != "onset" {
				continue
			}
			o := onset{at: lr.Timestamp().AsTime().Sub(began)}
			if why, ok := lr.Attributes().Get(gpusemconv.AttrEpisodeReason); ok {
				o.reason = why.Str()
			}
			if name, ok := rl.Resource().Attributes().Get(gpusemconv.AttrHostName); ok {
				o.nodes = append(o.nodes, name.Str())
			} else if list, ok := lr.Attributes().Get(gpusemconv.AttrEpisodeNodes); ok {
				for _, name := range list.Slice().All() {
					o.nodes = append(o.nodes, name.Str())
				}
			}
			onOnset(o)
		}
	}
}
