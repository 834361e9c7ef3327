// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The size of an attack on what a gateway knows of jobs and places: of nodes more than the
// share of a lone cluster, of ranks, laggards and labels ten times theirs and more.
const (
	jobPushes   = 250
	nodesOfJobs = 60
	ranksOfNode = 4
)

// madeUpJobs is a push of nodes with the longest names that are taken: of jobs, ranks,
// communicators, laggards, operations, racks and GPUs at fault.
func madeUpJobs() pmetric.Metrics {
	md := pmetric.NewMetrics()
	name := func(i int) string {
		text := fmt.Sprintf("%s-%d-", someDigits, i)
		return text + strings.Repeat("x", 253-len(text))
	}
	for i := range nodesOfJobs {
		rm := md.ResourceMetrics().AppendEmpty()
		attrs := rm.Resource().Attributes()
		attrs.PutStr(gpusemconv.AttrHostName, name(i))
		attrs.PutStr(gpusemconv.AttrClusterName, "greedy")
		attrs.PutStr(gpusemconv.AttrJobID, name(i))
		for k := range 8 {
			attrs.PutStr(fmt.Sprintf("%s%d-%s", gpusemconv.AttrTopologyPrefix, k, strings.Repeat("l", 50)), name(8*i + k)[:63])
		}
		metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
		gauge(metrics, gpusemconv.MetricNodeHealthScore, time.Now(), 0.97).Attributes().PutStr(gpusemconv.AttrNodeState, "active")
		for _, s := range []string{"throughput", "compute", "interconnect", "cpu", "power", "memory"} {
			gauge(metrics, gpusemconv.MetricNodeSignal, time.Now(), 1e30).Attributes().PutStr(gpusemconv.AttrSignal, s)
		}
		culprit := gauge(metrics, gpusemconv.MetricNodeCulprit, time.Now(), 1).Attributes()
		culprit.PutStr(gpusemconv.AttrSignal, "throughput")
		culprit.PutStr(gpusemconv.AttrJobRankGPU, name(i))
		for rank := range ranksOfNode {
			of := func(metric, unit string, value float64) pcommon.Map {
				p := gauge(metrics, metric, time.Now(), value)
				metrics.At(metrics.Len() - 1).SetUnit(unit)
				a := p.Attributes()
				a.PutStr(gpusemconv.AttrCommunicatorID, name(ranksOfNode*i+rank))
				a.PutInt(gpusemconv.AttrCommunicatorRank, int64(rank))
				return a
			}
			a := of(gpusemconv.MetricCommunicatorBandwidth, "By/s", 1e15)
			a.PutStr(gpusemconv.AttrCommunicatorName, name(rank))
			a.PutStr(gpusemconv.AttrCollectiveOperation, name(rank))
			of(gpusemconv.MetricCommunicatorShare, "1", 128)
			of(gpusemconv.MetricCollectiveProgress, "s", 1.7e10).PutStr(gpusemconv.AttrJobRankGPU, name(rank))
			of(gpusemconv.MetricCollectivePause, "s", 1.7e10).PutStr(gpusemconv.AttrJobRankGPU, name(rank))
			of(gpusemconv.MetricCollectiveLaggard, "1", 1).PutStr(gpusemconv.AttrServerAddress, name(rank))
		}
	}
	return md
}

// TestGreedyJobs fills what a gateway knows of jobs, communicators and places with made-up
// names. The honest push on, and a restart finds what was known of them.
func TestGreedyJobs(t *testing.T) {
	state := t.TempDir()
	g := gateway(t, options{state: state})
	b := beside(t, alone(g), "jobs")
	b.tenant.slow.Store(true)
	a := newAttackOf(t, g, madeUpJobs())
	a.run(0, jobPushes)
	eventually(t, "the honest tenant's slow node is found", func() bool { return g.straggler(bystander, "node3") })
	bound(t, "hostile_jobs_heap", float64(g.kept())/mib, "MiB", goMemoryLimit/2/mib)
	b.end()
	figure.FprintOnly(os.Stdout, "hostile_jobs_refused", float64(a.refused.Load()), "pushes")
	_, text := g.get("http://" + g.telemetry + "/metrics")
	for _, reason := range []string{"max_communicators", "max_jobs", "max_labels"} {
		assert.Regexp(t, `otelcol_processor_straggler_rejected(_\w+)?\{[^}]*reason="`+reason+`"[^}]*\} [1-9]`, string(text))
	}
	g.stop()
	assert.Less(t, g.log.len(), 1<<20, "bytes of log")

	again := gateway(t, options{state: state})
	assert.Contains(t, again.log.String(), "The comparison goes on with the state of before the restart.")
	h, s := newTenant(t, again, bystander), &told{}
	h.slow.Store(true)
	h.push(s)
	require.NoError(t, s.err)
	assert.Zero(t, s.withoutThreshold, "the first answer has a threshold")
	eventually(t, "it goes on with the same straggler", func() bool {
		h.push(&told{})
		return again.straggler(bystander, "node3")
	})
	assert.NotContains(t, again.log.String(), "STRAGGLER", "nothing new has happened")
}
