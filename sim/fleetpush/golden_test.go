// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// seriesOf are the series of one GPU, without what is the GPU's own, and how
// their metrics are described.
func seriesOf(md pmetric.Metrics, gpu string) map[string]string {
	own := []string{gpusemconv.AttrHWID, attrSerial, attrPCIBus, gpusemconv.AttrGPUIndex}
	found := map[string]string{}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		for _, p := range points(m).All() {
			if id, ok := p.Attributes().Get(gpusemconv.AttrHWID); !ok || id.Str() != gpu {
				continue
			}
			var labels []string
			for k, v := range p.Attributes().All() {
				if !slices.Contains(own, k) {
					labels = append(labels, k+"="+v.AsString())
				}
			}
			slices.Sort(labels)
			value := p.ValueType().String()
			if p.Flags().NoRecordedValue() {
				value = "ended"
			}
			found[m.Name()+"{"+strings.Join(labels, ",")+"}"] = fmt.Sprintf("%s %s %s %q", m.Type(), value, m.Unit(), m.Description())
		}
	}
	return found
}

func goldenOf(t *testing.T, file string) pmetric.Metrics {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	md, err := golden(text)
	require.NoError(t, err)
	return md
}

// gpuIDs are those of a report, in its order.
func gpuIDs(md pmetric.Metrics) (ids []string) {
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		if m.Name() == gpusemconv.MetricGPUInfo {
			for _, p := range points(m).All() {
				v, _ := p.Attributes().Get(gpusemconv.AttrHWID)
				ids = append(ids, v.Str())
			}
		}
	}
	return ids
}

// A well GPU and a lost GPU have the series that the nvml receiver reports of such
// GPUs, and of their earlier faults.
func TestSeriesAreTheReceivers(t *testing.T) {
	f := newFleet(t, Config{Nodes: 1, GPUs: 8, Load: fleetsim.Idle, Raw: true, Faults: []Fault{
		{Fault: fleetsim.Fault{Kind: fleetsim.LostGPU, GPU: 2, From: 15 * time.Second, Until: 35 * time.Second}},
	}})
	var reports []pmetric.Metrics
	for tick := range 5 {
		b, err := f.Next(0, 1, start.Add(time.Duration(tick)*10*time.Second), nil)
		require.NoError(t, err)
		reports = append(reports, decode(t, b))
	}
	ids := gpuIDs(reports[0])
	require.Len(t, ids, 8)
	well, lost := goldenOf(t, "h100.yaml"), goldenOf(t, "../../receiver/nvmlreceiver/testdata/lost_gpu.yaml")
	healthySeries, lostSeries := seriesOf(well, gpuIDs(well)[0]), seriesOf(lost, gpuIDs(lost)[2])
	for tick, md := range reports {
		assert.Equal(t, healthySeries, seriesOf(md, ids[0]), "tick %d", tick)
	}
	assert.Equal(t, healthySeries, seriesOf(reports[0], ids[2]))

	with := func(base map[string]string, more ...string) map[string]string {
		all := maps.Clone(base)
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	const (
		ended  = `Gauge ended 1 "1 when the GPU answered in this scrape, 0 with the reason when a GPU that was seen before did not."`
		reason = `Gauge Int 1 "1 while the reason holds the score down, 0 once it no longer does; absent before."`
		status = `Sum Int 1 "1 for the state that the GPU is in and 0 for the others; 0 for all while it is unknown."`
		xid    = `Sum Int {event} "Xid errors that the driver reported since the receiver listens."`
	)
	xids := func(md pmetric.Metrics) (found string) {
		for name := range seriesOf(md, ids[2]) {
			if strings.HasPrefix(name, gpusemconv.MetricGPUXIDEvents) {
				found = name
			}
		}
		return found
	}
	name := xids(reports[1])
	assert.Contains(t, name, "gpu.xid.code=79")
	reasonXid := "hw.gpu.health.reason{action=reboot,reason=xid_79}"
	sick := with(lostSeries, name, xid, reasonXid, reason)
	assert.Equal(t, with(sick, "hw.gpu.up{reason=ok}", ended), seriesOf(reports[1], ids[2]))
	assert.Equal(t, sick, seriesOf(reports[2], ids[2]), "a series ends once")
	back := with(healthySeries, name, xid, reasonXid, reason,
		"hw.gpu.health.reason{action=reboot,reason=gpu_lost}", reason,
		"hw.status{hw.state=failed,hw.type=gpu}", status)
	assert.Equal(t, with(back, "hw.gpu.up{reason=lost}", ended), seriesOf(reports[3], ids[2]))
	assert.Equal(t, back, seriesOf(reports[4], ids[2]))
}
