// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// sliceSeries are the points of the last report by MIG slice, each a metric of its own. They
// end with their slice: a sum of memory would count it twice, with its GPU's.
type sliceSeries map[string][]pmetric.Metric

// report ends the series of the slices that are gone, and keeps those of the others.
func (s *sliceSeries) report(md pmetric.Metrics, samples []gpuhealth.Sample, ts pcommon.Timestamp) {
	here, before := sliceSeries{}, *s
	for i := range samples {
		if samples[i].Parent != "" {
			here[samples[i].UUID] = nil
		}
	}
	*s = here
	if len(here)+len(before) == 0 {
		return
	}
	all := record.Metrics(md)
	for _, m := range all.All() {
		here.keep(m)
	}
	for slice, series := range before {
		if _, lives := here[slice]; lives {
			continue
		}
		for _, m := range series {
			record.Points(m).At(0).SetTimestamp(ts)
			m.MoveTo(all.AppendEmpty())
		}
	}
}

// keep keeps the series of a metric that slices have, without values.
func (s sliceSeries) keep(m pmetric.Metric) {
	switch m.Name() {
	case gpusemconv.MetricGPUXIDEvents, gpusemconv.MetricGPUAllocation:
		return // the first counts on, and the other ends by itself
	}
	for _, p := range record.Points(m).All() {
		id, ok := p.Attributes().Get(gpusemconv.AttrHWID)
		if !ok || p.Flags().NoRecordedValue() {
			continue
		}
		if series, slice := s[id.Str()]; slice {
			s[id.Str()] = append(series, record.EndOf(m, p))
		}
	}
}
