// SPDX-License-Identifier: Apache-2.0

// Package gpusemconv holds every metric, attribute and header name of the
// product, once. It uses the names of the OpenTelemetry hardware conventions
// (`hw.*`) as they are. The other names live under `hw.gpu.*`, `gpu.node.*`,
// `gpu.agent.*` and `gpu.straggler.*`.
package gpusemconv // import "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"

import "strings"

// Resource attributes. A resource is a node.
const (
	AttrHostName    = "host.name"
	AttrHostID      = "host.id"
	AttrK8sNodeName = "k8s.node.name"
	AttrClusterName = "k8s.cluster.name"
	AttrJobID       = "gpu.job.id"
	AttrJobRole     = "gpu.job.role"
	// AttrJobRank is a process's rank in its job, AttrJobLocalRank its rank on
	// the node; a point may have them too.
	AttrJobRank      = "gpu.job.rank"
	AttrJobLocalRank = "gpu.job.local_rank"
	// Of a rank that has no other name.
	AttrServiceInstanceID = "service.instance.id"
	AttrProcessPID        = "process.pid"
	// AttrJobRankGPU is the hw.id of the rank at fault. The record's own hw.id is
	// of what the reason points at, if that is known.
	AttrJobRankGPU = "gpu.job.rank.hw.id"
	// AttrGPUModel is the model of a node's GPUs, such as NVIDIA-H100-80GB-HBM3;
	// of several, joined with '+' in their order.
	AttrGPUModel = "gpu.model"
)

// Point attributes.
const (
	AttrHWID           = "hw.id"
	AttrHWType         = "hw.type"
	AttrSensorLocation = "hw.sensor_location"
	AttrGPUTask        = "hw.gpu.task"
	AttrErrorType      = "error.type"
	AttrECCCounter     = "gpu.ecc.counter"
	AttrClock          = "clock"
	AttrReason         = "reason"
	AttrHWModel        = "hw.model"
	AttrHWVendor       = "hw.vendor"
	AttrGPUIndex       = "gpu.index"
	AttrXIDCode        = "gpu.xid.code"
	AttrMemoryLocation = "gpu.memory.location"
	AttrActivityUnit   = "unit"
	AttrKind           = "kind"
	AttrCause          = "cause"
	AttrLimit          = "limit"

	AttrHWParent = "hw.parent"
	AttrState    = "state"
	AttrAction   = "action"
	AttrXIDClass = "gpu.xid.class"

	AttrNetworkIODirection = "network.io.direction"

	// AttrSignal names the input of the node score, see nodesignal.
	AttrSignal = "gpu.signal"
	// AttrNodeState is StateActive, StateIdle, StateCalibrating or StateMissing.
	AttrNodeState = "gpu.node.state"
	// AttrDetectionMode is fleet, cached, local or none.
	AttrDetectionMode = "gpu.detection.mode"
	// AttrUnjudged is why there is no verdict on a node, a word of MetricNodeUnjudged.
	AttrUnjudged = "gpu.node.unjudged"
	// AttrPeerGroup is the key of the nodes a node is compared with.
	AttrPeerGroup = "gpu.peer_group"
)

// Descriptive are the attributes of points that select nothing of the catalogue and whose
// names have a dot, which Prometheus does not keep.
var Descriptive = [...]string{
	AttrHWModel, AttrHWVendor, AttrGPUIndex, AttrXIDCode, AttrXIDClass, AttrNetworkIODirection, AttrPeerGroup, AttrJobRank, AttrJobLocalRank, AttrGPUInstance,
	"gpu.cuda.version", "gpu.link.id", "gpu.pci.bus_id", "hw.driver_version", "hw.firmware_version", "hw.serial_number",
	AttrCommunicatorID, AttrCommunicatorName, AttrCommunicatorRank, AttrCommunicatorSize, AttrCommunicatorNodes,
	AttrCollectiveOperation, AttrCollectiveSize, AttrServerAddress, AttrProcessPID,
	AttrJobID, AttrContainerName, AttrNamespaceName, AttrPodName, AttrPodUID,
}

// Attributes of a rank's communicators, see MetricCollectiveTimeShare.
const (
	AttrCommunicatorID    = "gpu.communicator.id"
	AttrCommunicatorName  = "gpu.communicator.name"
	AttrCommunicatorRank  = "gpu.communicator.rank"
	AttrCommunicatorSize  = "gpu.communicator.size"
	AttrCommunicatorNodes = "gpu.communicator.nodes"
	// AttrCollectiveOperation is AllReduce and so on, AttrCollectiveSize the least size of
	// the class of messages, in bytes.
	AttrCollectiveOperation = "gpu.collective.operation"
	AttrCollectiveSize      = "gpu.collective.message_size"
	AttrServerAddress       = "server.address"
	AttrPodUID              = "k8s.pod.uid"
)

// Attributes of MetricGPUAllocation, beside AttrJobID of a job: the container that holds
// the GPU, and whether others hold it too.
const (
	AttrContainerName = "k8s.container.name"
	AttrNamespaceName = "k8s.namespace.name"
	AttrPodName       = "k8s.pod.name"
	AttrShared        = "shared"
)

// Metrics of the nccl receiver: of a rank of a job, of its communicators, and of one that
// the others wait for.
const (
	// MetricCollectiveTimeShare is the share of wall time in collectives, gauge.
	MetricCollectiveTimeShare = "gpu.collective.time_share"
	// MetricCollectiveStalled is since when no operation has ended, gauge int, Unix seconds,
	// 0 while they end.
	MetricCollectiveStalled = "gpu.collective.stalled"
	// MetricCollectiveLaggard is 1 for a rank that is behind or missing, with AttrState.
	MetricCollectiveLaggard = "gpu.collective.laggard"

	MetricCommunicatorBandwidth  = "gpu.communicator.bandwidth"
	MetricCommunicatorLatency    = "gpu.communicator.latency"
	MetricCommunicatorOperations = "gpu.communicator.operations"
)

// Per-GPU metrics of the nvml receiver. Every point carries AttrHWID.
const (
	MetricGPUInfo               = "hw.gpu.info"
	MetricGPUUp                 = "hw.gpu.up"
	MetricGPUMemoryLimit        = "hw.gpu.memory.limit"
	MetricGPUMemoryUsage        = "hw.gpu.memory.usage"
	MetricGPUMemoryUtil         = "hw.gpu.memory.utilization"
	MetricGPUUtilization        = "hw.gpu.utilization"
	MetricTemperature           = "hw.temperature"
	MetricPower                 = "hw.power"
	MetricGPUPowerLimit         = "hw.gpu.power.limit"
	MetricEnergy                = "hw.energy"
	MetricGPUClock              = "hw.gpu.clock.frequency"
	MetricGPUClockLimit         = "hw.gpu.clock.frequency.limit"
	MetricErrors                = "hw.errors"
	MetricGPUThrottleActive     = "hw.gpu.throttle.active"
	MetricGPUActivity           = "hw.gpu.activity"
	MetricGPUXIDEvents          = "hw.gpu.xid.events"
	MetricGPUPCIeReplays        = "hw.gpu.pcie.replays"
	MetricGPUPCIeLinkWidth      = "hw.gpu.pcie.link.width"
	MetricGPUPCIeLinkGeneration = "hw.gpu.pcie.link.generation"
	MetricGPURetiredPages       = "hw.gpu.memory.retired_pages"
	MetricGPURetirementPending  = "hw.gpu.memory.retirement.pending"
	MetricGPURemappedRows       = "hw.gpu.memory.remapped_rows"
	MetricGPURemapFailed        = "hw.gpu.memory.remap.failed"
	MetricGPUNVLinkErrors       = "hw.gpu.nvlink.errors"
	MetricGPUNVLinkLinks        = "hw.gpu.nvlink.links"
	MetricGPUThrottleTime       = "hw.gpu.throttle.time"
	MetricGPUProcesses          = "hw.gpu.processes"
)

// Health of a GPU, and the GPUs of a node.
const (
	MetricGPUHealthScore    = "hw.gpu.health.score"
	MetricGPUHealthState    = "hw.gpu.health.state"
	MetricGPUHealthReason   = "hw.gpu.health.reason"
	MetricGPURecoveryAction = "hw.gpu.recovery_action"
	MetricGPUDevices        = "hw.gpu.devices"
	MetricGPUAllocation     = "hw.gpu.allocation"
)

// Events of the nvml receiver: names of log records, and their attributes
// besides AttrHWID and AttrHWParent.
const (
	// EventXid is one Xid error.
	EventXid = "hw.gpu.xid"
	// EventHealthChange is a change of hw.gpu.health.state.
	EventHealthChange = "hw.gpu.health.change"

	// AttrXIDImmediateAction is the immediate action of NVIDIA's catalogue.
	AttrXIDImmediateAction = "gpu.xid.immediate_action"
	AttrGPUInstance        = "gpu.mig.gpu_instance.id"
	AttrComputeInstance    = "gpu.mig.compute_instance.id"
	AttrHealthAction       = "hw.gpu.health.action"
	AttrHealthFrom         = "hw.gpu.health.from"
	AttrHealthTo           = "hw.gpu.health.to"
	AttrHealthScore        = "hw.gpu.health.score"
	// AttrHealthReasons and AttrHealthActions are lists of the same length.
	AttrHealthReasons = "hw.gpu.health.reasons"
	AttrHealthActions = "hw.gpu.health.actions"
)

// The event of the straggler processor, and its attributes besides AttrHWID,
// AttrSignal and AttrPeerGroup.
const (
	// EventStraggler is one change of one episode.
	EventStraggler = "gpu.straggler.episode"

	AttrEpisodeID = "gpu.straggler.episode.id"
	// AttrEpisodePhase is onset, severity or end.
	AttrEpisodePhase = "gpu.straggler.phase"
	// AttrEpisodeSubject is node, group, missing or cluster.
	AttrEpisodeSubject = "gpu.straggler.subject"
	// AttrEpisodeSeverity is minor, major or critical.
	AttrEpisodeSeverity = "gpu.straggler.severity"
	// AttrEpisodeSince is when the fault of the episode began, ISO 8601 in UTC.
	AttrEpisodeSince = "gpu.straggler.since"
	// AttrEpisodeDuration is the time from since to the end, in seconds.
	AttrEpisodeDuration = "gpu.straggler.duration"
	// AttrEpisodeCause is why an episode ended, or why a group has one.
	AttrEpisodeCause      = "gpu.straggler.cause"
	AttrEpisodeConfidence = "gpu.straggler.confidence"
	// AttrEpisodeGap is the loss as a fraction of the peers' level.
	AttrEpisodeGap         = "gpu.straggler.gap"
	AttrEpisodeValue       = "gpu.straggler.value"
	AttrEpisodePeersMedian = "gpu.straggler.peers.median"
	AttrEpisodePeersActive = "gpu.straggler.peers.active"
	AttrEpisodeRank        = "gpu.straggler.rank"
	AttrEpisodeReason      = "gpu.straggler.reason"
	// AttrEpisodeObservation is true when the reason has no contrast with the peers.
	AttrEpisodeObservation = "gpu.straggler.observation"
	// AttrEpisodeShared of AttrEpisodeAsked nodes of an incident have the reason.
	AttrEpisodeShared = "gpu.straggler.reason.nodes"
	AttrEpisodeAsked  = "gpu.straggler.reason.nodes_asked"
	// AttrEpisodeAllocations lists the containers and jobs that held the GPU at the onset.
	AttrEpisodeAllocations = "gpu.straggler.allocations"
	// AttrEpisodeEvidence is a list of sentences, AttrEpisodeAction what to do.
	AttrEpisodeEvidence  = "gpu.straggler.evidence"
	AttrEpisodeAction    = "gpu.straggler.action"
	AttrEpisodeNodes     = "gpu.straggler.nodes"
	AttrEpisodeNodeCount = "gpu.straggler.node_count"
	// AttrEpisodeRecovering is true when the node keeps up at its last value.
	AttrEpisodeRecovering = "gpu.straggler.recovering"
	// AttrEpisodePart is the rank and GPU as people name them.
	AttrEpisodePart = "gpu.straggler.part"
	// AttrEpisodeRanks is how many ranks are compared.
	AttrEpisodeRanks = "gpu.straggler.ranks"
	// AttrEpisodeCost is the GPU-hours lost per hour.
	AttrEpisodeCost = "gpu.straggler.gpu_hours_lost_per_hour"
)

// Metrics that a training job may push to its node's agent.
const (
	// MetricAppStepOwnDuration is a rank's own time of one training step, without the wait for
	// other ranks, gauge, seconds.
	MetricAppStepOwnDuration = "gpu.app.step.own_duration"
	// MetricAppStepDuration is the time of one training step, gauge, seconds.
	MetricAppStepDuration = "gpu.app.step.duration"
	// MetricAppStepRate is the number of training steps per second, gauge, "{step}/s".
	MetricAppStepRate = "gpu.app.step.rate"
)

// Node metrics, one resource per node.
const (
	// MetricNodeState is 1 for the state the node is in and 0 for the others, with AttrNodeState.
	MetricNodeState = "gpu.node.state"
	// MetricNodeHealthScore is the node's score, gauge in [0,1].
	MetricNodeHealthScore = "gpu.node.health_score"
	// MetricNodeSignal is an unnormalised input of the score, gauge, with AttrSignal.
	MetricNodeSignal = "gpu.node.signal"
	// MetricNodeHeartbeat is the time of the node's last report, gauge int, Unix seconds.
	MetricNodeHeartbeat = "gpu.node.heartbeat"
	// MetricNodeStraggler is the gateway's verdict, gauge int 0/1, with AttrPeerGroup.
	MetricNodeStraggler = "gpu.node.straggler"
	// MetricNodeSuspicion is how close the node is to a verdict, gauge in
	// [0,2], from 1 on a straggler if that lasts, with AttrPeerGroup.
	MetricNodeSuspicion = "gpu.node.suspicion"
	// MetricNodeUnjudged is why there is no verdict on the node, gauge int with
	// AttrPeerGroup: the number of an unjudged.Reason. MetricNodeUnjudgedUntil is when
	// that ends, gauge int, Unix seconds, where it is known.
	MetricNodeUnjudged      = "gpu.node.unjudged"
	MetricNodeUnjudgedUntil = "gpu.node.unjudged.until"

	// MetricAgentStraggler is the node's own verdict, gauge int 0/1.
	MetricAgentStraggler = "gpu.agent.straggler"
	// MetricAgentThreshold is the threshold the node judges itself by, gauge in [0,1].
	MetricAgentThreshold = "gpu.agent.threshold"
	// MetricAgentDetectionMode is 1 for the mode in force and 0 for the others.
	MetricAgentDetectionMode = "gpu.agent.detection_mode"
	// MetricAgentGatewayReachable is 1 while pushes are answered, gauge int 0/1.
	MetricAgentGatewayReachable = "gpu.agent.gateway_reachable"
)

// Gateway metrics, one resource per cluster, one point per peer group.
const (
	MetricStragglerThreshold   = "gpu.straggler.threshold"
	MetricStragglerMedian      = "gpu.straggler.median"
	MetricStragglerMAD         = "gpu.straggler.mad"
	MetricStragglerNodes       = "gpu.straggler.nodes"
	MetricStragglerQuorumMet   = "gpu.straggler.quorum_met"
	MetricStragglerCoverageLow = "gpu.straggler.coverage_low"
	MetricStragglers           = "gpu.straggler.stragglers"
	// MetricStragglerIncident is 1 while many nodes of the group are slow.
	MetricStragglerIncident = "gpu.straggler.incident"
	// MetricStragglerUnjudged counts the nodes without a verdict by AttrUnjudged.
	MetricStragglerUnjudged = "gpu.straggler.unjudged"
	// MetricStragglerDetectable is the smallest loss that is found within an hour now, in
	// percent.
	MetricStragglerDetectable = "gpu.straggler.detectable"
	// MetricStragglerRank is the rank of a node among the most suspicious of
	// its cluster, 1 for the worst, with AttrHostName and AttrPeerGroup.
	MetricStragglerRank = "gpu.straggler.rank"
	// MetricStragglerRankValue is a signal by AttrSignal of the rank of a node that is
	// furthest behind in it, MetricStragglerRankMedian that of the ranks it is compared with.
	// Both are of a node's resource, with AttrPeerGroup.
	MetricStragglerRankValue  = "gpu.straggler.rank.value"
	MetricStragglerRankMedian = "gpu.straggler.rank.median"
	// MetricStragglerMissing is the time of the last report of a node that is missing, with
	// AttrHostName and AttrPeerGroup.
	MetricStragglerMissing = "gpu.straggler.missing"
	// MetricStragglerSignalMedian and MetricStragglerSignalScale are what nodes
	// are compared with, by AttrSignal.
	MetricStragglerSignalMedian = "gpu.straggler.signal.median"
	MetricStragglerSignalScale  = "gpu.straggler.signal.scale"
	// MetricStragglerSignalThreshold is below what a node is a straggler within a
	// minute, in the signal's unit.
	MetricStragglerSignalThreshold = "gpu.straggler.signal.threshold"
	// MetricStragglerSignalFall is how far that median is below its usual level.
	MetricStragglerSignalFall = "gpu.straggler.signal.fall"
)

// Node states.
const (
	StateActive      = "active"
	StateIdle        = "idle"
	StateCalibrating = "calibrating"
	StateMissing     = "missing"
)

// Headers on the wire; gRPC uses the same names in its metadata. No `X-` prefix (RFC 6648).
const (
	HeaderCluster = "gpu-cluster"
	HeaderNode    = "gpu-node"
	HeaderGroup   = "gpu-group"
	// HeaderTier is there when the sender is a tier in between: what it claims is asked
	// for others, and says nothing of whom the push is of.
	HeaderTier      = "gpu-tier"
	HeaderThreshold = "gpu-straggler-threshold"
	HeaderQuorumMet = "gpu-straggler-quorum-met"
	HeaderParams    = "gpu-straggler-params"
	// HeaderVerdict lists nodes that are stragglers.
	HeaderVerdict = "gpu-straggler-verdict"
	// HeaderEpoch names the life of the process that answers: what was pushed
	// to another one, or before, it does not have.
	HeaderEpoch = "gpu-state-epoch"
	// HeaderStanding asks how a node stands among its peers, and has the answer.
	HeaderStanding = "gpu-standing"
)

// Reserved are the beginnings of the names under which a gateway reports its findings.
// No client may use them.
var Reserved = [...]string{"gpu.straggler", MetricNodeStraggler, MetricNodeSuspicion, MetricNodeUnjudged}

// IsReserved reports whether a metric has a name of a gateway, or one that Prometheus
// takes for such a name. Prometheus joins the words of name and unit with '_'.
func IsReserved(metric, unit string) bool {
	named := words{metric, unit}
	if named.next() != "gpu" { // as all of Reserved, and few others
		return false
	}
	for _, name := range Reserved {
		has, wants := words{metric, unit}, words{name: name}
		for {
			want := wants.next()
			if want == "" {
				return true
			}
			if has.next() != want {
				break
			}
		}
	}
	return false
}

// words are those of a metric's name, and then of its unit.
type words struct{ name, unit string }

// next returns the next word, empty after the last. Prometheus' rules move the words
// "ratio" and "total" to the end.
func (w *words) next() string {
	for {
		from := 0
		for from < len(w.name) && !inWord(w.name[from]) {
			from++
		}
		to := from
		for to < len(w.name) && inWord(w.name[to]) {
			to++
		}
		word := w.name[from:to]
		w.name = w.name[to:]
		switch {
		case word == "" && w.unit != "":
			w.name, w.unit = mainUnit(w.unit), ""
		case word != "ratio" && word != "total":
			return word
		}
	}
}

// mainUnit is what a name has of a unit: not what it is per, and no annotation.
func mainUnit(unit string) string {
	unit, _, _ = strings.Cut(unit, "/")
	if strings.ContainsAny(unit, "{}") {
		return ""
	}
	return unit
}

func inWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == ':'
}
