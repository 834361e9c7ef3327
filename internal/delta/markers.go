// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

type pointSlice[P any] interface {
	Len() int
	At(int) P
	AppendEmpty() P
	RemoveIf(func(P) bool)
}

type point[P any] interface {
	Attributes() pcommon.Map
	Flags() pmetric.DataPointFlags
	CopyTo(P)
}

// markersLast divides metrics so that a point without a value is the last of its
// own, see markerMetric. The order of the points stays.
func markersLast(rm pmetric.ResourceMetrics) {
	for _, sm := range rm.ScopeMetrics().All() {
		for i := range sm.Metrics().Len() {
			m := sm.Metrics().At(i)
			own := func() pmetric.Metric {
				to := sm.Metrics().AppendEmpty()
				likeMetric(m, to)
				return to
			}
			switch m.Type() {
			case pmetric.MetricTypeGauge:
				divide(m.Gauge().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Gauge().DataPoints() })
			case pmetric.MetricTypeSum:
				divide(m.Sum().DataPoints(), func() pmetric.NumberDataPointSlice { return own().Sum().DataPoints() })
			case pmetric.MetricTypeHistogram:
				divide(m.Histogram().DataPoints(), func() pmetric.HistogramDataPointSlice { return own().Histogram().DataPoints() })
			case pmetric.MetricTypeExponentialHistogram:
				divide(m.ExponentialHistogram().DataPoints(), func() pmetric.ExponentialHistogramDataPointSlice { return own().ExponentialHistogram().DataPoints() })
			case pmetric.MetricTypeSummary:
				divide(m.Summary().DataPoints(), func() pmetric.SummaryDataPointSlice { return own().Summary().DataPoints() })
			case pmetric.MetricTypeEmpty:
			}
		}
	}
}

func divide[S pointSlice[P], P point[P]](from S, own func() S) {
	var to S
	moving, ended := false, false
	from.RemoveIf(func(dp P) bool {
		if ended {
			to, moving = own(), true
		}
		ended = dp.Flags().NoRecordedValue()
		if moving {
			dp.CopyTo(to.AppendEmpty())
		}
		return moving
	})
}

// likeMetric makes to what m is, without points.
func likeMetric(m, to pmetric.Metric) {
	to.SetName(m.Name())
	to.SetDescription(m.Description())
	to.SetUnit(m.Unit())
	m.Metadata().CopyTo(to.Metadata())
	setType(to, m.Type(), temporality(m), isMonotonic(m))
}

// setType makes m an empty metric of a type.
func setType(m pmetric.Metric, kind pmetric.MetricType, of pmetric.AggregationTemporality, monotonic bool) {
	switch kind {
	case pmetric.MetricTypeGauge:
		m.SetEmptyGauge()
	case pmetric.MetricTypeSum:
		m.SetEmptySum().SetAggregationTemporality(of)
		m.Sum().SetIsMonotonic(monotonic)
	case pmetric.MetricTypeHistogram:
		m.SetEmptyHistogram().SetAggregationTemporality(of)
	case pmetric.MetricTypeExponentialHistogram:
		m.SetEmptyExponentialHistogram().SetAggregationTemporality(of)
	case pmetric.MetricTypeSummary:
		m.SetEmptySummary()
	case pmetric.MetricTypeEmpty:
	}
}

// hasMarker reports whether m has points without a value.
func hasMarker(m pmetric.Metric) (has bool) {
	removePoints(m, func(flags pmetric.DataPointFlags) bool {
		has = has || flags.NoRecordedValue()
		return false
	})
	return has
}

// removePoints removes the points that drop says to.
func removePoints(m pmetric.Metric, drop func(pmetric.DataPointFlags) bool) {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		m.Gauge().DataPoints().RemoveIf(func(dp pmetric.NumberDataPoint) bool { return drop(dp.Flags()) })
	case pmetric.MetricTypeSum:
		m.Sum().DataPoints().RemoveIf(func(dp pmetric.NumberDataPoint) bool { return drop(dp.Flags()) })
	case pmetric.MetricTypeHistogram:
		m.Histogram().DataPoints().RemoveIf(func(dp pmetric.HistogramDataPoint) bool { return drop(dp.Flags()) })
	case pmetric.MetricTypeExponentialHistogram:
		m.ExponentialHistogram().DataPoints().RemoveIf(func(dp pmetric.ExponentialHistogramDataPoint) bool { return drop(dp.Flags()) })
	case pmetric.MetricTypeSummary:
		m.Summary().DataPoints().RemoveIf(func(dp pmetric.SummaryDataPoint) bool { return drop(dp.Flags()) })
	case pmetric.MetricTypeEmpty:
	}
}

func resourcePoints(rm pmetric.ResourceMetrics) (points int) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			points += metricreading.Count(m)
		}
	}
	return points
}
