// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/logsink"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
)

// TestEventsAreDocumented compares docs/events.md with records that have all
// that a record can have.
func TestEventsAreDocumented(t *testing.T) {
	sink := &consumertest.LogsSink{}
	l := logs{sink: logsink.New(sink, zap.NewNop(), 2, func() {}), resource: pcommon.NewResource(), now: time.Now}
	l.sink.Start()
	l.xid(&gpuhealth.XidEvent{
		UUID: "MIG-1", Parent: "GPU-1", Code: 94,
		GPUInstance: gpuhealth.Some[uint32](1), ComputeInstance: gpuhealth.Some[uint32](0),
	}, &gpuhealth.Xid{Code: 94, Class: gpuhealth.XidApplication, Immediate: "RESTART_APP", Action: gpuhealth.ActionRestartApp})
	var sample gpuhealth.Sample
	sample.UUID, sample.Parent = "MIG-1", "GPU-1"
	l.health(&sample, &gpuhealth.Verdict{
		State: gpuhealth.StateDegraded, Previous: gpuhealth.StateHealthy, Changed: true, Score: gpuhealth.Some(70),
	}, "")
	l.sink.Shutdown(t.Context())

	got := map[string][]string{}
	for _, ld := range sink.AllLogs() {
		lr := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
		got[lr.EventName()] = slices.Sorted(maps.Keys(lr.Attributes().AsRaw()))
	}
	for _, event := range []string{gpusemconv.EventXid, gpusemconv.EventHealthChange} {
		want, err := eventdoc.Attributes("../../docs/events.md", event)
		require.NoError(t, err)
		assert.Equal(t, want, got[event], event)
	}
}
