// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zapobserver "go.uber.org/zap/zaptest/observer"
)

// storageIn is a file_storage of a directory.
func storageIn(t *testing.T, dir string) component.Component {
	f := filestorage.NewFactory()
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory, cfg.FSync = dir, true
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	return ext
}

// judged is what the agent handed on last of its node.
func (a *agent) judged() map[string]float64 {
	all := a.next.(*consumertest.MetricsSink).AllMetrics()
	return values(all[len(all)-1])
}

// TestTheLastThresholdIsUsedAfterARestart: an agent was killed, and finds no gateway. It
// judges its node by the threshold that it heard before, says how old that is, and lets go
// of it after `cached_ttl`.
func TestTheLastThresholdIsUsedAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, ext := t.TempDir(), &fakeExtension{}
		one := agentLifeOf(t, storageIn(t, dir), ext, zap.NewNop())
		for range 30 {
			ext.tell("J")
			one.steps(t, "J", 1)
		}
		heard := time.Now().Add(-10 * time.Second)
		killed := t.TempDir() // the disk as the kill leaves it
		synctest.Wait()
		text, err := os.ReadFile(filepath.Join(dir, "processor_straggler__agent"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(killed, "processor_straggler__agent"), text, 0o600))
		require.NoError(t, one.Shutdown(t.Context()))
		time.Sleep(20 * time.Second)

		core, lines := zapobserver.New(zapcore.InfoLevel)
		two := agentLifeOf(t, storageIn(t, killed), &fakeExtension{}, zap.New(core))
		two.steps(t, "J", 1)
		got := two.judged()
		assert.InDelta(t, 1, got["n0 gpu.agent.detection_mode cached"], 0)
		assert.InDelta(t, 0.93, got["n0 gpu.agent.threshold"], 0)
		assert.Zero(t, got["n0 gpu.agent.gateway_reachable"])
		told := lines.FilterMessageSnippet("the gateway's last threshold until the gateway answers").All()
		require.Len(t, told, 1)
		fields := told[0].ContextMap()
		age := fields["age"].(time.Duration)
		assert.GreaterOrEqual(t, age, time.Since(heard)-10*time.Second)
		assert.LessOrEqual(t, age, time.Since(heard)+agentEvery, "a kill costs what was not written yet")
		assert.Equal(t, 5*time.Minute-age, fields["at_most_for"])

		for time.Since(heard) <= 5*time.Minute {
			two.steps(t, "J", 1)
		}
		two.steps(t, "J", 1)
		assert.InDelta(t, 1, two.judged()["n0 gpu.agent.detection_mode local"], 0, "it is too old")
		require.NoError(t, two.Shutdown(t.Context()))

		// In order, and another gateway answers with the second push.
		again := &fakeExtension{}
		three := agentLifeOf(t, storageIn(t, dir), again, zap.NewNop())
		three.steps(t, "J", 1)
		assert.InDelta(t, 1, three.judged()["n0 gpu.agent.detection_mode local"], 0, "older than `cached_ttl`")
		again.tell("J")
		three.steps(t, "J", 1)
		assert.InDelta(t, 1, three.judged()["n0 gpu.agent.detection_mode fleet"], 0)
		require.NoError(t, three.Shutdown(t.Context()))
	})
}
