// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// TestNames keeps metadata.yaml in step with the names that the processors look for.
func TestNames(t *testing.T) {
	m := metadata.MetricsInfo
	for want, got := range map[string]string{
		gpusemconv.MetricGPUInfo:           m.HwGpuInfo.Name,
		gpusemconv.MetricGPUUp:             m.HwGpuUp.Name,
		gpusemconv.MetricGPUMemoryLimit:    m.HwGpuMemoryLimit.Name,
		gpusemconv.MetricGPUMemoryUsage:    m.HwGpuMemoryUsage.Name,
		gpusemconv.MetricGPUMemoryUtil:     m.HwGpuMemoryUtilization.Name,
		gpusemconv.MetricGPUUtilization:    m.HwGpuUtilization.Name,
		gpusemconv.MetricTemperature:       m.HwTemperature.Name,
		gpusemconv.MetricPower:             m.HwPower.Name,
		gpusemconv.MetricGPUPowerLimit:     m.HwGpuPowerLimit.Name,
		gpusemconv.MetricEnergy:            m.HwEnergy.Name,
		gpusemconv.MetricGPUClock:          m.HwGpuClockFrequency.Name,
		gpusemconv.MetricGPUClockLimit:     m.HwGpuClockFrequencyLimit.Name,
		gpusemconv.MetricErrors:            m.HwErrors.Name,
		gpusemconv.MetricGPUThrottleActive: m.HwGpuThrottleActive.Name,
	} {
		assert.Equal(t, want, got)
	}

	mb := metadata.NewMetricsBuilder(metadata.NewDefaultMetricsBuilderConfig(), settings(t).Settings)
	sample := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: "GPU-1", Model: "m"}, Reason: gpuhealth.ReasonOK}
	sample.Temperature, sample.Utilization, sample.PowerLimit = gpuhealth.Some(1.0), gpuhealth.Some(1.0), gpuhealth.Some(1.0)
	sample.Clocks[gpuhealth.ClockSM], sample.ECC[0][0], sample.Throttle = gpuhealth.Some(1.0), gpuhealth.Some[uint64](1), gpuhealth.Some[uint64](1)
	r := recorder{mb: mb, ts: 1}
	r.sample(&sample)
	got := map[string][]string{}
	for _, rm := range mb.Emit().ResourceMetrics().All() {
		for _, metric := range rm.ScopeMetrics().At(0).Metrics().All() {
			dps := metric.Gauge().DataPoints
			if metric.Type() == pmetric.MetricTypeSum {
				dps = metric.Sum().DataPoints
			}
			for key := range dps().At(0).Attributes().All() {
				got[metric.Name()] = append(got[metric.Name()], key)
			}
		}
	}
	assert.Equal(t, map[string][]string{
		gpusemconv.MetricGPUInfo:           {gpusemconv.AttrHWID, gpusemconv.AttrHWVendor, gpusemconv.AttrGPUIndex, gpusemconv.AttrHWModel},
		gpusemconv.MetricGPUUp:             {gpusemconv.AttrHWID, gpusemconv.AttrReason},
		gpusemconv.MetricTemperature:       {gpusemconv.AttrHWID, gpusemconv.AttrSensorLocation},
		gpusemconv.MetricGPUUtilization:    {gpusemconv.AttrHWID, gpusemconv.AttrGPUTask},
		gpusemconv.MetricGPUClock:          {gpusemconv.AttrHWID, gpusemconv.AttrClock},
		gpusemconv.MetricGPUPowerLimit:     {gpusemconv.AttrHWID, gpusemconv.AttrLimit},
		gpusemconv.MetricGPUThrottleActive: {gpusemconv.AttrHWID, gpusemconv.AttrReason},
		gpusemconv.MetricErrors: {
			gpusemconv.AttrHWID, gpusemconv.AttrHWType, gpusemconv.AttrErrorType, gpusemconv.AttrMemoryLocation, gpusemconv.AttrECCCounter,
		},
	}, got)
}
