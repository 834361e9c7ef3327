// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// agentLife is an agent between two reboots of its node.
func agentLife(t *testing.T, d *disk) *agent {
	return agentLifeOf(t, d, &fakeExtension{}, zap.NewNop())
}

func agentLifeOf(t *testing.T, d component.Component, ext *fakeExtension, log *zap.Logger) *agent {
	cfg := createDefaultConfig().(*Config)
	cfg.Mode, cfg.State.StorageID, cfg.Agent.NodeName, cfg.ThresholdExtension = modeAgent, &storageID, "n0", &extensionID
	set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	set.Logger = log
	p, err := NewFactory().CreateMetrics(t.Context(), set, cfg, new(consumertest.MetricsSink))
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context(), host{map[component.ID]component.Component{storageID: d, extensionID: ext}}))
	return p.(*agent)
}

// steps reports training steps of a second, in a job.
func (a *agent) steps(t *testing.T, job string, times int) {
	for range times {
		md := pmetric.NewMetrics()
		gauge(resource(md, map[string]any{"host.name": "n0", "k8s.cluster.name": "prod", "gpu.job.id": job}), "gpu.app.step.duration", 1)
		require.NoError(t, a.ConsumeMetrics(t.Context(), md))
		time.Sleep(10 * time.Second)
	}
}

// TestANodeThatReboots has its baseline of before with its first push, in the same job.
func TestANodeThatReboots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		known := func(a *agent) bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, n := range a.nodes {
				return !n.score.Unknown() && len(a.packNodes(time.Now())) > 0 && n.score.Calibrated()
			}
			return false
		}
		one := agentLife(t, d)
		one.steps(t, "J", 1)
		assert.False(t, known(one), "one report is no baseline")
		one.steps(t, "J", 20)
		require.True(t, known(one))
		killed := d.copied()
		require.NoError(t, one.Shutdown(t.Context()))

		for name, tt := range map[string]struct {
			d    *disk
			job  string
			want bool
		}{"killed": {killed, "J", true}, "in order": {d.copied(), "J", true}, "another job": {d.copied(), "K", false}} {
			two := agentLife(t, tt.d)
			two.steps(t, tt.job, 1)
			assert.Equal(t, tt.want, known(two), name)
			require.NoError(t, two.Shutdown(t.Context()))
		}
		spoilt := d.copied()
		bad := bytes.Clone(spoilt.values[agentKey])
		bad[len(bad)-6] ^= 1
		spoilt.values[agentKey] = bad
		three := agentLife(t, spoilt)
		three.steps(t, "J", 1)
		assert.False(t, known(three))
		require.NoError(t, three.Shutdown(t.Context()))
		assert.Equal(t, bad, spoilt.copied().values[agentKey+setAside], "set aside")
		time.Sleep(2 * agentMaxAge)
		late := agentLife(t, d.copied())
		late.steps(t, "J", 1)
		assert.False(t, known(late), "of too long ago")
		require.NoError(t, late.Shutdown(t.Context()))
	})
}
