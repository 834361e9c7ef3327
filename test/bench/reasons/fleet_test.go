// SPDX-License-Identifier: Apache-2.0

package reasons

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

const (
	poll    = 10 * time.Second
	cluster = "lab"
)

// fleet is nodes with their reports, the straggler processor of their agents,
// and that of a gateway.
type fleet struct {
	began  time.Time
	nodes  *fleetpush.Fleet
	bytes  []byte
	wire   *link
	agents processor.Metrics // one for all: it keeps its nodes apart
	// gateway has a part in a metrics and one in a logs pipeline.
	gateway processor.Metrics
	logs    processor.Logs
	onsets  []onset
	// lockstep, where it is set, adds what ranks tell; leaves says that nodes have one.
	lockstep *lockstep
	leaves   bool
}

// onset is an episode that the gateway reported.
type onset struct {
	at                      time.Duration // since the fleet began
	subject, reason, signal string
	gpu, leaf, ids, faulty  string
	nodes                   []int
}

// newFleet starts a fleet in the simulated time of a bubble.
func newFleet(t *testing.T, cfg fleetpush.Config) *fleet {
	t.Helper()
	f := &fleet{began: time.Now(), wire: &link{}}
	cfg.Cluster, cfg.Step, cfg.Start, cfg.Raw = cluster, poll, f.began, true
	var err error
	f.nodes, err = fleetpush.New(cfg)
	require.NoError(t, err)
	sink, err := consumer.NewLogs(func(_ context.Context, ld plog.Logs) error { f.hear(ld); return nil })
	require.NoError(t, err)
	nowhere, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error { return nil })
	require.NoError(t, err)

	factory := stragglerprocessor.NewFactory()
	set := processortest.NewNopSettings(factory.Type())
	gateway := shipped(t, factory, "gateway.yaml")
	gateway.(*stragglerprocessor.Config).State.StorageID = nil // nothing is restarted
	f.gateway, err = factory.CreateMetrics(t.Context(), set, gateway, nowhere)
	require.NoError(t, err)
	f.logs, err = factory.CreateLogs(t.Context(), set, gateway, sink)
	require.NoError(t, err)
	f.agents, err = factory.CreateMetrics(t.Context(), set, shipped(t, factory, "agent.yaml"), f.gateway)
	require.NoError(t, err)
	host := host{component.MustNewID("straggler_threshold"): f.wire}
	for _, c := range []component.Component{f.logs, f.gateway, f.agents} {
		require.NoError(t, c.Start(t.Context(), host))
	}
	return f
}

func (f *fleet) shutdown(t *testing.T) {
	t.Helper()
	for _, c := range []component.Component{f.agents, f.gateway, f.logs} {
		assert.NoError(t, c.Shutdown(t.Context()))
	}
}

// shipped is the straggler processor's part of a shipped configuration.
func shipped(t *testing.T, factory processor.Factory, file string) component.Config {
	t.Helper()
	conf, err := confmaptest.LoadConf("../../../configs/" + file)
	require.NoError(t, err)
	sub, err := conf.Sub("processors::straggler")
	require.NoError(t, err)
	cfg := factory.CreateDefaultConfig().(*stragglerprocessor.Config)
	require.NoError(t, sub.Unmarshal(cfg))
	cfg.DefaultCluster, cfg.PageURL = cluster, "" // what the environment fills in
	require.NoError(t, cfg.Validate())
	return cfg
}

// run lets the fleet run for a while.
func (f *fleet) run(t *testing.T, d time.Duration) {
	t.Helper()
	// Nodes do not push all at once.
	gap := poll / time.Duration(f.nodes.Nodes())
	for end := time.Now().Add(d); time.Now().Before(end); {
		if f.lockstep != nil {
			f.lockstep.advance(time.Since(f.began) + poll)
		}
		for i := range f.nodes.Nodes() {
			var err error
			f.bytes, err = f.nodes.Next(i, 1, time.Now(), f.bytes[:0])
			require.NoError(t, err)
			report := pmetricotlp.NewExportRequest()
			require.NoError(t, report.UnmarshalProto(f.bytes))
			if f.lockstep != nil {
				f.lockstep.tell(report.Metrics(), i, time.Now())
			}
			if f.leaves {
				for _, rm := range report.Metrics().ResourceMetrics().All() {
					rm.Resource().Attributes().PutStr(gpusemconv.AttrTopologyPrefix+"leaf", leafName(i%nodesPerJob))
				}
			}
			require.NoError(t, f.agents.ConsumeMetrics(t.Context(), report.Metrics()))
			require.NoError(t, f.wire.answer(time.Now()))
			time.Sleep(gap)
		}
		time.Sleep(poll - gap*time.Duration(f.nodes.Nodes()))
	}
}

// hear takes the onsets out of log records.
func (f *fleet) hear(ld plog.Logs) {
	names := map[string]int{}
	for i := range f.nodes.Nodes() {
		names[fleetpush.NodeName(i)] = i
	}
	for _, rl := range ld.ResourceLogs().All() {
		for _, lr := range rl.ScopeLogs().At(0).LogRecords().All() {
			text := func(key string) string {
				if v, ok := lr.Attributes().Get(key); ok {
					return v.AsString()
				}
				return ""
			}
			if lr.EventName() != gpusemconv.EventStraggler || text(gpusemconv.AttrEpisodePhase) != "onset" {
				continue
			}
			o := onset{
				at: lr.Timestamp().AsTime().Sub(f.began), subject: text(gpusemconv.AttrEpisodeSubject),
				reason: text(gpusemconv.AttrEpisodeReason), signal: text(gpusemconv.AttrSignal),
				gpu: text(gpusemconv.AttrHWID), faulty: text(gpusemconv.AttrCommunicatorFaulty),
				leaf: first(lr, gpusemconv.AttrEpisodeTopology), ids: first(lr, gpusemconv.AttrCommunicatorIDs),
			}
			if name, ok := rl.Resource().Attributes().Get(gpusemconv.AttrHostName); ok {
				o.nodes = append(o.nodes, names[name.Str()])
			} else if list, ok := lr.Attributes().Get(gpusemconv.AttrEpisodeNodes); ok {
				for _, name := range list.Slice().All() {
					o.nodes = append(o.nodes, names[name.Str()])
				}
			}
			f.onsets = append(f.onsets, o)
		}
	}
}

// first is the only text of a list, empty where there are none or several.
func first(lr plog.LogRecord, key string) string {
	if list, ok := lr.Attributes().Get(key); ok && list.Slice().Len() == 1 {
		return list.Slice().At(0).Str()
	}
	return ""
}

func leafName(i int) string { return fmt.Sprint("leaf-", i) }

// link stands for the threshold extensions of gateway and agents: what the one
// publishes comes to the others in the text of the headers.
type link struct {
	component.StartFunc
	component.ShutdownFunc
	store    threshold.Store
	answered *threshold.Snapshot
	inbox    threshold.Inbox
}

var (
	_ threshold.Publisher = (*link)(nil)
	_ threshold.Source    = (*link)(nil)
)

func (w *link) Publish(snap *threshold.Snapshot) { w.store.Publish(snap) }
func (*link) SetClaim(wire.Claim)                {}
func (*link) Reachable() bool                    { return true }
func (w *link) Received(cluster, group string) (threshold.Received, bool) {
	return w.inbox.Get(cluster, group)
}

// answer is what the first push after a tick brings back, for all groups.
func (w *link) answer(now time.Time) error {
	snap := w.store.Snapshot(now)
	if snap == nil || snap == w.answered {
		return nil
	}
	w.answered = snap
	names := wire.Names{Params: "params"}
	for name, c := range snap.Clusters {
		for group := range c.Groups {
			for _, h := range c.Respond(nil, &names, []string{group}) {
				if h.Name != names.Params {
					continue
				}
				values, err := threshold.ParseParams([]string{h.Value})
				if err != nil {
					return err
				}
				for _, v := range values {
					w.inbox.Put(name, v, now)
				}
			}
		}
	}
	return nil
}

// host has these extensions.
type host map[component.ID]component.Component

var _ component.Host = host{}

// GetExtensions implements component.Host.
func (h host) GetExtensions() map[component.ID]component.Component { return h }
