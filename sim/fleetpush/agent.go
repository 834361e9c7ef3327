// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// scope is the one under which the straggler processor reports.
const scope = "github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"

// addVerdict adds what a node's agent finds out about it.
func addVerdict(md pmetric.Metrics, id *identity, model string, now time.Time, res *nodescore.Result, reachable bool) {
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	rm.Resource().Attributes().PutStr(gpusemconv.AttrGPUModel, model)
	nodereport.Append(rm, scope, pcommon.NewTimestampFromTime(now), res, reachable)
}

// addStep adds what the training job of a node tells its agent.
func addStep(md pmetric.Metrics, id *identity, now time.Time, seconds float64) {
	rm := md.ResourceMetrics().AppendEmpty()
	id.name(rm.Resource(), gpusemconv.AttrHostName, gpusemconv.AttrClusterName, gpusemconv.AttrJobID)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(gpusemconv.MetricAppStepDuration)
	m.SetUnit(reading.ByName(m.Name()).Unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(seconds)
	p.SetTimestamp(pcommon.NewTimestampFromTime(now))
}
