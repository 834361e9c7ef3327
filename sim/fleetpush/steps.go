// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"errors"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// steps is what the training job of a node tells its agent, as one resource.
type steps struct {
	resource resource
	input    *nodescore.Input
}

func newSteps(like *identity, plan *nodescore.Plan) (*steps, error) {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	for _, attr := range [...]string{gpusemconv.AttrHostName, gpusemconv.AttrClusterName, gpusemconv.AttrJobID} {
		rm.Resource().Attributes().PutStr(attr, like.text(named[attr]))
	}
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName(gpusemconv.MetricAppStepDuration)
	m.SetUnit(reading.ByName(m.Name()).Unit)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(0)
	p.SetTimestamp(1)

	inputs := plan.Inputs(gpusemconv.MetricAppStepDuration)
	if len(inputs) != 1 {
		return nil, errors.New("the node's score has no one place for the time of a step")
	}
	s := &steps{input: &inputs[0]}
	return s, s.resource.compile(md)
}

func (s *steps) write(dst []byte, id *identity, now uint64, seconds float64) []byte {
	from := len(dst)
	dst = append(dst, s.resource.bytes...)
	s.resource.fill(dst[from:], id, now, func(int) float64 { return seconds })
	return dst
}
