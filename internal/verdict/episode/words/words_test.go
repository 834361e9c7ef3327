// SPDX-License-Identifier: Apache-2.0

package words

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func names(uuid string) string {
	return map[string]string{"GPU-a": "GPU 3", "GPU-b": "GPU 5"}[uuid]
}

// TestLine: the line of each phase makes sense by itself. No identifier and no time is in it.
func TestLine(t *testing.T) {
	hot := []episode.Evidence{{Fact: "hw_thermal", GPU: "GPU-a", Value: new(1.0), Peers: new(0.0)}, {Fact: "temperature", GPU: "GPU-a", Unit: "Cel", Value: new(91.0), Peers: new(60.0)}}
	node := func(f func(*episode.Episode)) *episode.Episode {
		e := &episode.Episode{
			ID: "0123456789abcdef", Phase: episode.PhaseOnset, Subject: episode.SubjectNode, Cluster: "prod", Group: "J/stage-0", Node: "n2",
			Signal: "throughput", Severity: episode.SeverityMajor, Since: noon, Updated: noon.Add(90 * time.Second), Gap: new(0.125), Median: new(10.0),
			Reason: "hw_thermal", Action: "check_cooling", GPU: "GPU-a", Evidence: hot, Cost: new(8.0),
		}
		f(e)
		return e
	}
	rank := nodesignal.Subject{GPU: "GPU-a", Rank: nodesignal.OrdinalOf(21)}
	unexplained := func(e *episode.Episode) { e.Reason, e.Action, e.GPU, e.Evidence = "unexplained", "burn_in", "", nil }
	const heat = "The hardware held the clocks down because of heat; temperature of the GPU: 91 °C, peers 60 °C. " +
		"Check fans, airflow and coolant of the node. The job loses the work of 8 GPUs."
	for want, e := range map[string]*episode.Episode{
		"Straggler n2, GPU 3: 12.5 % behind its peers in throughput, for 1m30s. " + heat: node(func(*episode.Episode) {}),
		"Straggler n2, rank 21 (GPU 3), critical now: 30 % behind its peers in throughput, for 1m30s. " + heat: node(func(e *episode.Episode) {
			e.Phase, e.Severity, e.Gap, e.Culprit = episode.PhaseSeverity, episode.SeverityCritical, new(0.3), rank
		}),
		"Straggler n2, rank 21 (GPU 5): 12.5 % behind its peers in throughput, for 1m30s. GPU 3: the hardware held the clocks down because of heat. Check fans, airflow and coolant of the node.": node(func(e *episode.Episode) {
			e.Culprit, e.Evidence, e.Cost = nodesignal.Subject{GPU: "GPU-b", Rank: rank.Rank}, hot[:1], nil
		}),
		"Straggler n2: over after 1m30s. It recovered.": node(func(e *episode.Episode) { e.GPU = ""; e.End(e.Updated, episode.CauseRecovered) }),
		`Straggler "evil\nline": 12.5 % behind its peers in throughput, since before it was watched. Nothing that was measured explains it. Drain the node and run a burn-in.`: node(func(e *episode.Episode) {
			unexplained(e)
			e.Node, e.SinceBefore, e.Cost = "evil\nline", true, nil
		}),
		"Straggler n2, rank 21: Takes 50 % longer between collectives than its peers; the other ranks of job J wait 30 % of their time for it, for 1m30s. " +
			"Nothing that was measured explains it. Look at what the rank does between its collectives: input, logging, checkpoints. Then look at its GPU.": node(func(e *episode.Episode) {
			unexplained(e)
			e.Signal, e.Gap, e.Median, e.Job, e.Cost, e.Action = "communication", new(0.3), new(0.4), "J", nil, "inspect_job"
			e.Culprit = nodesignal.Subject{GPU: "GPU-unknown", Rank: rank.Rank}
		}),
		"Incident in group J/stage-0: 12 nodes slow at once, 12.5 % behind their peers in throughput, for 1m30s. " +
			"The hardware held the clocks down because of heat, on 10 of 12 nodes. Check fans, airflow and coolant of the node.": node(func(e *episode.Episode) {
			e.Subject, e.Node, e.NodeCount, e.Evidence, e.Cost, e.GPU, e.Shared, e.Asked = episode.SubjectGroup, "", 12, hot[:1], nil, "", 10, 12
		}),
		"Missing nodes of group J/stage-0: No report from 5 nodes, for 1m30s. Look at what the nodes share, such as switch, rack or power, and at their way to the gateway.": {
			Phase: episode.PhaseOnset, Subject: episode.SubjectMissing, Group: "J/stage-0", NodeCount: 5, Since: noon, Updated: noon.Add(90 * time.Second),
		},
		"Communicator tp:0 of job J is slow: 12 GB/s instead of 18 GB/s. Its ranks arrive together, so that none of them is slow. Look at the links between the nodes of the communicator.": {
			Phase: episode.PhaseOnset, Subject: episode.SubjectLink, Job: "J", Communicator: "tp:0", CommunicatorID: "0x1", Value: new(12e9), Median: new(18e9), Since: noon, Updated: noon,
		},
		"Job J, more is known now: Job J stands still: no operation of its ranks ends, for 1m30s. The other ranks wait for rank 21 (GPU 3) on n2. Look at what that rank does, and at the node's kernel log.": {
			Phase: episode.PhaseUpdate, Subject: episode.SubjectJob, Job: "J", Node: "n2", Culprit: rank, Since: noon, Updated: noon.Add(90 * time.Second),
		},
	} {
		assert.Equal(t, want, Line(e, names))
	}
}

// TestWhy: a reason is a proof or an observation.
func TestWhy(t *testing.T) {
	e := episode.Episode{Subject: episode.SubjectNode, Reason: "hw_thermal", Evidence: []episode.Evidence{{Fact: "hw_thermal", Value: new(1.0), Standing: true}}}
	assert.Equal(t, "The hardware held the clocks down because of heat, and was so before.", Why(&e, NoGPUs))
	e.Observation = true
	assert.Equal(t, "Its peers show it too, or are not known: the hardware held the clocks down because of heat.", Why(&e, NoGPUs))
	assert.Empty(t, Why(&episode.Episode{Subject: episode.SubjectNode}, NoGPUs))
}

// TestRecovering: the text of a node that keeps up has what its end takes.
func TestRecovering(t *testing.T) {
	e := episode.Episode{Subject: episode.SubjectNode, Signal: "throughput", Gap: new(0.1), Recovering: true}
	assert.Equal(t, "10 % behind its peers in throughput. It keeps up now: the verdict ends when it has done so for some minutes.", What(&e))
	assert.Equal(t, "Nothing, unless it begins again.", Next(&e))
	e.Subject, e.NodeCount = episode.SubjectGroup, 1
	assert.Equal(t, "One of many nodes is still slow, 10 % behind their peers in throughput. All keep up now: the incident ends when they have done so for some minutes.", What(&e))
	assert.Equal(t, "Slower than its peers.", What(&episode.Episode{Subject: episode.SubjectNode}))
}
