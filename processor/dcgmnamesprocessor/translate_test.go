// SPDX-License-Identifier: Apache-2.0

package dcgmnamesprocessor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processorhelper"
)

// report is what the receiver says of GPU-0, index 3, of n1, at a time.
type report struct {
	pmetric.Metrics
	at time.Time
}

func newReport(at time.Time) report {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", "n1")
	rm.ScopeMetrics().AppendEmpty()
	r := report{md, at}
	r.put("hw.gpu.info", 1, "gpu.index", "3", "hw.model", "H100")
	return r
}

func (r report) put(metric string, v float64, attributes ...string) {
	m := r.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
	m.SetName(metric)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(r.at))
	p.SetDoubleValue(v)
	p.Attributes().PutStr("hw.id", "GPU-0")
	for i := 0; i < len(attributes); i += 2 {
		p.Attributes().PutStr(attributes[i], attributes[i+1])
	}
}

// values are those of the metrics, by name.
func values(t *testing.T, of *translator, r report) map[string]float64 {
	t.Helper()
	md, err := of.translate(context.Background(), r.Metrics)
	require.NoError(t, err)
	found := map[string]float64{}
	points(md.ResourceMetrics().At(0), func(name string, p pmetric.NumberDataPoint) {
		found[name] = p.DoubleValue()
		if strings.HasPrefix(name, "DCGM") {
			assert.Equal(t, map[string]any{"gpu": "3", "UUID": "GPU-0", "device": "nvidia3", "modelName": "H100", "Hostname": "n1", "hostname": "n1"}, p.Attributes().AsRaw())
		}
	})
	return found
}

func TestNamesUnitsAndLabels(t *testing.T) {
	r := newReport(time.Unix(100, 0))
	r.put("hw.gpu.memory.limit", 80<<30)
	r.put("hw.gpu.memory.usage", 60<<30)
	r.put("hw.gpu.memory.reserved", 1<<30)
	r.put("hw.gpu.utilization", 0.9, "hw.gpu.task", "general")
	r.put("hw.gpu.utilization", 0.4, "hw.gpu.task", "memory")
	assert.Equal(t, map[string]float64{
		"DCGM_FI_DEV_FB_FREE": 19 * 1024, "DCGM_FI_DEV_FB_USED": 60 * 1024, "DCGM_FI_DEV_FB_RESERVED": 1024,
		"DCGM_FI_DEV_GPU_UTIL": 90, "DCGM_FI_DEV_MEM_COPY_UTIL": 40, "DCGM_FI_DEV_XID_ERRORS": 0,
	}, values(t, newTranslator(&Config{}), r))
}

func TestFreeMemoryIsNotGuessed(t *testing.T) {
	r := newReport(time.Unix(100, 0))
	r.put("hw.gpu.memory.limit", 80<<30)
	r.put("hw.gpu.memory.usage", 60<<30)
	assert.NotContains(t, values(t, newTranslator(&Config{}), r), "DCGM_FI_DEV_FB_FREE")
}

func TestRatesNeedTwoReports(t *testing.T) {
	of := newTranslator(&Config{})
	const name = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
	for i, want := range []float64{-1, 5, -1, 5} {
		r := newReport(time.Unix(int64(100+10*i), 0))
		counter := float64(i) * 20e6
		switch i {
		case 2:
			counter = 0 // the driver was loaded anew
		case 3:
			counter = 20e6
		}
		r.put("hw.gpu.io", counter, "gpu.link", "nvlink", "network.io.direction", "transmit")
		r.put("hw.gpu.io", 1.5*counter, "gpu.link", "nvlink", "network.io.direction", "receive")
		got, ok := values(t, of, r)[name]
		assert.Equal(t, want >= 0, ok, i)
		if ok {
			assert.InDelta(t, want, got, 1e-9)
		}
	}
}

func TestTheLastXid(t *testing.T) {
	of := newTranslator(&Config{})
	for i, step := range []struct{ of48, of79, want float64 }{{0, 0, 0}, {1, 0, 48}, {1, 1, 79}, {1, 1, 79}, {2, 1, 48}} {
		r := newReport(time.Unix(int64(100+10*i), 0))
		r.put("hw.gpu.xid.events", step.of48, "gpu.xid.code", "48")
		r.put("hw.gpu.xid.events", step.of79, "gpu.xid.code", "79")
		assert.InDelta(t, step.want, values(t, of, r)["DCGM_FI_DEV_XID_ERRORS"], 0, "report %d", i)
	}
}

func TestItsMemoryIsBounded(t *testing.T) {
	of := newTranslator(&Config{})
	for i := range 2 * maxSeries {
		of.exchange(strings.Repeat("x", i%7)+time.Unix(int64(i), 0).String(), 1, time.Unix(100, 0))
	}
	assert.Len(t, of.last, maxSeries)
	of.exchange("new", 1, time.Unix(100, 0).Add(2*forget))
	assert.Len(t, of.last, 1)
}

func TestKeepAndWhatIsOfNoGPU(t *testing.T) {
	r := newReport(time.Unix(100, 0))
	r.put("hw.power", 350)
	kept := values(t, newTranslator(&Config{Keep: true}), r)
	assert.Contains(t, kept, "hw.power")
	assert.InDelta(t, 350, kept["DCGM_FI_DEV_POWER_USAGE"], 0)

	slice := newReport(time.Unix(100, 0))
	slice.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).Attributes().PutStr("hw.parent", "GPU-9")
	_, err := newTranslator(&Config{}).translate(context.Background(), slice.Metrics)
	assert.ErrorIs(t, err, processorhelper.ErrSkipProcessingData, err)
}
