// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

// Names that the gateway's straggler processor writes and internal/gpusemconv
// does not have yet.
const (
	metricNodeSuspicion = "gpu.node.suspicion"
	metricStragglerRank = "gpu.straggler.rank"
	metricIncident      = "gpu.straggler.incident"
	metricSignalMedian  = "gpu.straggler.signal.median"

	attrCohort = "gpu.peer_group.cohort"

	eventEpisode = "gpu.straggler.episode"
)
