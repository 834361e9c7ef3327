// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

var storageID = component.MustNewID("file_storage")

// disk is a storage extension whose values outlive its processes.
type disk struct {
	component.StartFunc
	component.ShutdownFunc

	mu     sync.Mutex
	values map[string][]byte
	full   bool
	writes int
}

func newDisk() *disk { return &disk{values: map[string][]byte{}} }

func (d *disk) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return &diskClient{disk: d}, nil
}

// copied is the disk as a process finds it after another was killed.
func (d *disk) copied() *disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return &disk{values: maps.Clone(d.values)}
}

func (d *disk) set(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

type diskClient struct {
	storage.Client // what is not used
	disk           *disk
}

var errFull = errors.New("no space left on device")

func (c *diskClient) Batch(_ context.Context, ops ...*storage.Operation) error {
	d := c.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range ops {
		switch {
		case op.Type == storage.Get:
			op.Value = d.values[op.Key]
			continue
		case d.full:
			return errFull
		case op.Type == storage.Delete:
			delete(d.values, op.Key)
			continue
		}
		d.values[op.Key] = op.Value
		d.writes++
	}
	return nil
}

func (c *diskClient) Get(ctx context.Context, key string) ([]byte, error) {
	op := storage.GetOperation(key)
	err := c.Batch(ctx, op)
	return op.Value, err
}

func (c *diskClient) Set(ctx context.Context, key string, value []byte) error {
	return c.Batch(ctx, storage.SetOperation(key, value))
}

func (*diskClient) Close(context.Context) error { return nil }

// stateRig is a gateway with a storage, and what it tells.
type stateRig struct {
	t       *testing.T
	metrics *gatewayMetrics
	logs    *gatewayLogs
	records *consumertest.LogsSink
	ext     *fakeExtension
	lines   *zapobserver.ObservedLogs
}

func newStateRig(t *testing.T, d component.Component, change func(*Config)) *stateRig {
	r := &stateRig{t: t, records: new(consumertest.LogsSink), ext: &fakeExtension{}}
	cfg := createDefaultConfig().(*Config)
	cfg.Mode, cfg.ThresholdExtension, cfg.State.StorageID = modeGateway, &extensionID, &storageID
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	core, lines := zapobserver.New(zapcore.InfoLevel)
	set.Logger, r.lines = zap.New(core), lines
	f := NewFactory()
	m, err := f.CreateMetrics(t.Context(), set, cfg, new(consumertest.MetricsSink))
	require.NoError(t, err)
	l, err := f.CreateLogs(t.Context(), set, cfg, r.records)
	require.NoError(t, err)
	r.metrics, r.logs = m.(*gatewayMetrics), l.(*gatewayLogs)
	at := host{map[component.ID]component.Component{extensionID: r.ext, storageID: d}}
	require.NoError(t, r.metrics.Start(t.Context(), at))
	require.NoError(t, r.logs.Start(t.Context(), at))
	return r
}

func (r *stateRig) shutdown() {
	require.NoError(r.t, r.metrics.Shutdown(r.t.Context()))
	require.NoError(r.t, r.logs.Shutdown(r.t.Context()))
}

// play pushes a fleet for some intervals.
func (r *stateRig) play(intervals int, scores ...float64) {
	for range intervals {
		require.NoError(r.t, r.metrics.ConsumeMetrics(r.t.Context(), fleet(scores...)))
		time.Sleep(10 * time.Second)
		synctest.Wait()
	}
}

// told is what was told of an episode.
type toldOf struct {
	phase, id, since, subject, cause string
	at                               time.Time
}

func short3(all []toldOf) (list [][]string) {
	for _, r := range all {
		list = append(list, []string{r.phase, r.id, r.since})
	}
	return list
}

func (r *stateRig) told() (all []toldOf) {
	for _, ld := range r.records.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, lr := range sl.LogRecords().All() {
					text := func(key string) string {
						v, known := lr.Attributes().Get(key)
						if !known {
							return ""
						}
						return v.AsString()
					}
					all = append(all, toldOf{
						text(gpusemconv.AttrEpisodePhase), text(gpusemconv.AttrEpisodeID), text(gpusemconv.AttrEpisodeSince),
						text(gpusemconv.AttrEpisodeSubject), text(gpusemconv.AttrEpisodeCause), lr.Timestamp().AsTime(),
					})
				}
			}
		}
	}
	return all
}

// TestAnEpisodeOutlivesTheGateway: however the process ends, the one after it goes on with
// the same episode, and answers with its threshold from the first push on.
func TestAnEpisodeOutlivesTheGateway(t *testing.T) {
	for name, tt := range map[string]struct {
		killed bool
		pause  time.Duration
	}{
		"upgrade":            {false, 20 * time.Second},
		"killed":             {true, 5 * time.Second},
		"killed, and a wait": {true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				one := newStateRig(t, d, nil)
				one.play(20, 1, 1, 1, 1, 1, 1)
				one.play(15, 1, 1, 0.8, 1, 1, 1)
				onset := one.told()
				require.Len(t, onset, 1)
				require.Equal(t, "onset", onset[0].phase)
				want := one.ext.snap.Clusters["prod"].Groups["J/stage-0"].Value
				if tt.killed {
					d = d.copied()
				}
				one.shutdown()
				time.Sleep(tt.pause)

				two := newStateRig(t, d, nil)
				got := two.ext.snap
				require.NotNil(t, got, "thresholds are there before the first push")
				assert.InDelta(t, want.Threshold, got.Clusters["prod"].Groups["J/stage-0"].Threshold, 1e-9)
				assert.InDelta(t, want.Threshold, got.Clusters["prod"].Wide.Threshold, 1e-9)
				assert.Equal(t, want.Signals[0].Centre, got.Clusters["prod"].Groups["J/stage-0"].Signals[0].Centre) //nolint:testifylint // the very same
				two.play(12, 1, 1, 0.8, 1, 1, 1)
				goesOn := []string{"continues", onset[0].id, onset[0].since}
				assert.Equal(t, [][]string{goesOn}, short3(two.told()), "nothing new has happened")
				two.play(40, 1, 1, 1, 1, 1, 1)
				assert.Equal(t, [][]string{goesOn, {"end", onset[0].id, onset[0].since}}, short3(two.told()))
				two.shutdown()
			})
		})
	}
}
