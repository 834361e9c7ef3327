// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// long is a text of n bytes that shares nothing with the others.
func long(i, n int) string {
	text := fmt.Sprintf("%08x", uint32(i)*2654435761)
	return strings.Repeat(text, n/len(text)+1)[:n]
}

// TestAFullStateIsReadAgain: somebody fills all that a gateway keeps with the longest names,
// and with values at the ends of their ranges. The state is still one that a restart reads,
// and nobody else loses what was known of it.
func TestAFullStateIsReadAgain(t *testing.T) {
	signals := []string{"throughput", "compute", "interconnect", "cpu", "power", "memory"}
	greatest := []float64{0, 5e-324, 1e-300, 1, 1e30}
	for name, fill := range map[string]func(rm pmetric.ResourceMetrics, i, round int){
		"nodes": func(rm pmetric.ResourceMetrics, i, round int) {
			gauge(rm, "gpu.node.health_score", 1/float64(1+(i+round)%3))
			gauge(rm, "gpu.node.state", 1, "state", "active")
			for k, s := range signals {
				gauge(rm, "gpu.node.signal", greatest[(i*7+round*(k+1))%len(greatest)], "gpu.signal", s)
			}
			c := gauge(rm, gpusemconv.MetricNodeCulprit, 1, "gpu.signal", "throughput", gpusemconv.AttrJobRankGPU, long(i, 253))
			c.Attributes().PutInt(gpusemconv.AttrJobRank, 1<<62)
			for k := range 8 {
				rm.Resource().Attributes().PutStr("gpu.topology."+long(k, 63), long(8*i+k, 63))
			}
			rm.Resource().Attributes().PutStr("gpu.job.id", long(i/20, 253))
			rm.Resource().Attributes().PutStr("gpu.job.role", long(i/20, 253))
		},
		"jobs": func(rm pmetric.ResourceMetrics, i, round int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", long(i, 253))
			gauge(rm, "gpu.node.health_score", 0.9)
			gauge(rm, "gpu.node.state", 1, "state", "active")
			gauge(rm, "gpu.node.signal", greatest[(i+round)%len(greatest)], "gpu.signal", "power")
			p := gauge(rm, gpusemconv.MetricCollectiveProgress, 1.7e10, gpusemconv.AttrCommunicatorID, long(i, 253))
			p.SetTimestamp(pcommon.Timestamp(1<<63 + uint64(i)))
			gauge(rm, gpusemconv.MetricCollectivePause, 1.7e10)
			gauge(rm, gpusemconv.MetricCollectiveLaggard, 1, gpusemconv.AttrCommunicatorID, long(i, 253), gpusemconv.AttrServerAddress, long(i, 253))
		},
		"communicators": func(rm pmetric.ResourceMetrics, i, round int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", long(i/4, 253))
			v := []float64{5e-324, 1e15}[(i+round/15)%2]
			for k := range 4 {
				a := gauge(rm, gpusemconv.MetricCommunicatorBandwidth, v, gpusemconv.AttrCommunicatorID, long(4*i+k, 253),
					gpusemconv.AttrCommunicatorName, long(i, 253), gpusemconv.AttrCollectiveOperation, long(i, 253)).Attributes()
				a.PutInt(gpusemconv.AttrCommunicatorRank, 1<<62)
				a.PutInt(gpusemconv.AttrCommunicatorSize, 1<<62)
				gauge(rm, gpusemconv.MetricCommunicatorShare, 128, gpusemconv.AttrCommunicatorID, long(4*i+k, 253)).
					Attributes().PutInt(gpusemconv.AttrCommunicatorRank, 1<<62)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				change := func(c *Config) { c.MaxBytes = 8 << 20 }
				one := newStateRig(t, d, change)
				for round := range 25 {
					for cluster := range 8 {
						for i := range 300 {
							md := pmetric.NewMetrics()
							fill(resource(md, map[string]any{"host.name": long(i, 253), "k8s.cluster.name": long(cluster, 253)}), i, round)
							require.NoError(t, one.metrics.ConsumeMetrics(t.Context(), md))
						}
					}
					one.play(1, 1, 1, 1, 1, 1, 1)
				}
				one.shutdown()
				two := newStateRig(t, d, change)
				assert.Len(t, two.lines.FilterMessageSnippet("goes on with the state").All(), 1)
				for _, l := range two.lines.FilterMessageSnippet(notUsed).All() {
					t.Error(l.Message, l.ContextMap())
				}
				time.Sleep(30 * time.Second)
				two.shutdown()
			})
		})
	}
}
