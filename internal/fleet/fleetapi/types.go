// SPDX-License-Identifier: Apache-2.0

// Package fleetapi is the HTTP API of the fleet view: its Go types, its
// operations and their OpenAPI document, over internal/fleet/fleetstate and
// internal/fleet/fleethistory.
package fleetapi // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"

import (
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Page is the part of a list in an answer.
type Page struct {
	Page  int  `json:"page" doc:"Number of the page, from 1"`
	Limit int  `json:"limit" doc:"Most items on a page"`
	Total int  `json:"total" doc:"Items selected in all; -1 where that is not known"`
	More  bool `json:"more" doc:"Whether there is a next page"`
	// Next is empty where there is none, and in lists of the history.
	Next string `json:"next,omitempty" doc:"Cursor of the next page: the parameter after. With it no item is skipped or repeated while others come and go"`
}

// Sighting is the age of a view.
type Sighting struct {
	LastSeen   time.Time `json:"last_seen" doc:"Last sign of life of the node: its heartbeat or report"`
	AgeSeconds float64   `json:"age_seconds" doc:"How long ago that was when this was answered"`
}

// Node is the latest view of a node.
type Node struct {
	fleetstate.Key
	Sighting
	Group            string     `json:"group,omitempty" doc:"Peer group that the gateway compares the node in"`
	JobID            string     `json:"job_id,omitempty"`
	JobRole          string     `json:"job_role,omitempty"`
	HostID           string     `json:"host_id,omitempty"`
	State            string     `json:"state,omitempty" enum:"active,idle,calibrating,missing" doc:"missing: the node does not report; absent while unknown"`
	Health           string     `json:"health" enum:"unknown,healthy,degraded,unhealthy" doc:"The worst of its GPUs"`
	Straggler        bool       `json:"straggler" doc:"The gateway's verdict; false of a missing node, which has none"`
	Suspicion        *float64   `json:"suspicion,omitempty" doc:"Evidence against the node as a share of what names a straggler; 1 and more is a straggler"`
	Unjudged         string     `json:"unjudged,omitempty" enum:"idle,missing,calibrating,contested,no_signal,too_few_peers,other_levels,lockstep" doc:"Why the gateway has no verdict on the node; absent where it has one"`
	UnjudgedText     string     `json:"unjudged_text,omitempty" doc:"The same in a sentence"`
	UnjudgedUntil    *time.Time `json:"unjudged_until,omitempty" doc:"When that ends, where it is known"`
	Rank             *int64     `json:"rank,omitempty" doc:"Place among the most suspect nodes of the cluster, from 1"`
	AgentStraggler   *bool      `json:"agent_straggler,omitempty" doc:"The node's own verdict"`
	DetectionMode    string     `json:"detection_mode,omitempty" enum:"fleet,cached,local,none" doc:"The parameters that the node judges itself by"`
	GatewayReachable *bool      `json:"gateway_reachable,omitempty"`
	Score            *float64   `json:"score,omitempty" doc:"Health score of the node, 0 to 1"`
	AgentThreshold   *float64   `json:"agent_threshold,omitempty" doc:"Score below which the node takes itself for a straggler"`
	GroupMedian      *float64   `json:"group_median,omitempty" doc:"Median score of the peer group"`
	CPUPressure      *float64   `json:"cpu_pressure,omitempty" doc:"Share of time in which some task waited for a CPU"`
	Utilization      *float64   `json:"utilization,omitempty" doc:"Mean utilisation of the GPUs, 0 to 1"`
	MaxTemperature   *float64   `json:"max_temperature_celsius,omitempty"`
	Power            *float64   `json:"power_watts,omitempty" doc:"All GPUs together"`
	Signals          []Signal   `json:"signals" doc:"The signals that the node is compared by"`
	GPUCount         GPUCount   `json:"gpu_count"`
	GPUs             []GPU      `json:"gpus,omitempty" doc:"Only where asked for"`
	Episode          *Episode   `json:"episode,omitempty" doc:"The open episode of the node, or the one of many that names it. Only of a single node and in the ranking"`
}

// Signal is one measure of a node.
type Signal struct {
	Signal string   `json:"signal"`
	Value  float64  `json:"value" doc:"In the signal's own unit, or a fraction"`
	Median *float64 `json:"median,omitempty" doc:"Median of the peer group; absent while that is split"`
	Scale  *float64 `json:"scale,omitempty" doc:"Spread of the peer group, as a fraction of the signal's level"`
	// Threshold is the group's. The node's own is Node.AgentThreshold.
	Threshold *float64 `json:"threshold,omitempty" doc:"Value below which a node is a straggler within a minute, in the signal's own unit"`
}

// GPUCount counts the GPUs of a node.
type GPUCount struct {
	Known    int    `json:"known" doc:"In this view, without MIG slices"`
	Expected *int64 `json:"expected,omitempty"`
	Found    *int64 `json:"found,omitempty"`
	Lost     *int64 `json:"lost,omitempty"`
	Pending  *int64 `json:"pending,omitempty" doc:"Have not answered since the agent's start"`
}

// GPU is the latest view of a GPU or MIG slice.
type GPU struct {
	UUID   string `json:"uuid"`
	Parent string `json:"parent,omitempty" doc:"GPU that a MIG slice is cut from"`
	Index  *int   `json:"index,omitempty" doc:"NVML's index; no identity"`
	Model  string `json:"model,omitempty"`
	Serial string `json:"serial,omitempty"`
	Driver string `json:"driver_version,omitempty"`
	BusID  string `json:"pci_bus_id,omitempty"`

	LastReported       time.Time `json:"last_reported" doc:"When a reading of this GPU last came; where only differences are sent, the last change or resync. Long before the node's last_seen, it may have been taken out"`
	ReportedAgeSeconds float64   `json:"reported_age_seconds" doc:"How long ago that was when this was answered"`

	Up          *bool                     `json:"up,omitempty" doc:"Whether the GPU answers. While it does not, it has no readings, only limits"`
	DownSince   *time.Time                `json:"down_since,omitempty" doc:"When it last answered, where that is known and it does not"`
	UpReason    string                    `json:"up_reason,omitempty" doc:"ok, or why the GPU does not answer"`
	Health      string                    `json:"health" enum:"unknown,healthy,degraded,unhealthy"`
	HealthScore *float64                  `json:"health_score,omitempty" doc:"0 to 100"`
	Reasons     []fleetstate.HealthReason `json:"reasons" doc:"The reasons that hold the health score down"`
	Action      string                    `json:"recovery_action,omitempty" doc:"The action that the driver asks for"`
	Throttles   []string                  `json:"throttle_reasons" doc:"The reasons that hold the clocks down"`
	Xids        []fleetstate.Xid          `json:"xids"`
	Allocations []reading.Holder          `json:"allocations,omitempty" doc:"The containers and jobs that hold the GPU"`

	Temperature       *float64 `json:"temperature_celsius,omitempty"`
	TemperatureLimit  *float64 `json:"temperature_limit_celsius,omitempty" doc:"Where the hardware slows down"`
	TemperatureMargin *float64 `json:"temperature_margin_celsius,omitempty" doc:"Degrees left to the highest operating temperature"`
	MemoryTemperature *float64 `json:"memory_temperature_celsius,omitempty"`
	Power             *float64 `json:"power_watts,omitempty"`
	PowerLimit        *float64 `json:"power_limit_watts,omitempty"`
	Utilization       *float64 `json:"utilization,omitempty" doc:"0 to 1"`
	TensorActivity    *float64 `json:"tensor_activity,omitempty" doc:"0 to 1"`
	SMActivity        *float64 `json:"sm_activity,omitempty" doc:"0 to 1"`
	SMClock           *float64 `json:"sm_clock_hertz,omitempty"`
	SMClockLimit      *float64 `json:"sm_clock_limit_hertz,omitempty"`
	MemoryUsed        *float64 `json:"memory_used_bytes,omitempty"`
	MemoryLimit       *float64 `json:"memory_limit_bytes,omitempty"`
	ECC               ECC      `json:"ecc_errors"`
	RemappedRows      Rows     `json:"remapped_rows"`
	PCIeWidth         *float64 `json:"pcie_width,omitempty" doc:"Lanes"`
	PCIeWidthMax      *float64 `json:"pcie_width_max,omitempty"`
	PCIeReplays       *float64 `json:"pcie_replays,omitempty"`
}

// Brief is what a map shows of a node.
type Brief struct {
	fleetstate.Key
	Group     string     `json:"group,omitempty"`
	State     string     `json:"state,omitempty"`
	LastSeen  time.Time  `json:"last_seen" doc:"In whole seconds"`
	Straggler bool       `json:"straggler,omitempty"`
	Suspicion *float64   `json:"suspicion,omitempty" doc:"In thousandths"`
	Score     *float64   `json:"score,omitempty" doc:"In thousandths"`
	GPUs      []BriefGPU `json:"gpus,omitempty" doc:"In the order of their indices, without MIG slices"`
}

// BriefGPU is [index, health, temperature].
type BriefGPU []*int

// Schema documents the numbers for the OpenAPI document.
func (BriefGPU) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type:     huma.TypeArray,
		Items:    &huma.Schema{Type: huma.TypeInteger, Nullable: true},
		MinItems: new(3), MaxItems: new(3),
		Description: "The index; the health: 0 unknown, 1 healthy, 2 degraded, 3 unhealthy, 4 does not answer; and degrees Celsius",
	}
}

// ECC counts memory errors: since the driver was loaded, and of the board's life.
type ECC struct {
	Corrected        *float64 `json:"corrected,omitempty"`
	Uncorrected      *float64 `json:"uncorrected,omitempty"`
	CorrectedTotal   *float64 `json:"corrected_total,omitempty"`
	UncorrectedTotal *float64 `json:"uncorrected_total,omitempty"`
}

// Rows counts remapped rows by what made them go.
type Rows struct {
	Corrected   *float64 `json:"corrected,omitempty"`
	Uncorrected *float64 `json:"uncorrected,omitempty"`
}

// NodeGPU is a GPU and its node.
type NodeGPU struct {
	fleetstate.Key
	Sighting
	GPU
}

// Straggler is a rank among the most suspect nodes.
type Straggler struct {
	Place int `json:"place" doc:"From 1"`
	Node
}

// Group is a peer group; the empty one is the whole cluster.
type Group struct {
	fleetstate.GroupKey
	Sighting
	Nodes        map[string]int64 `json:"nodes" doc:"Nodes by state"`
	Unjudged     map[string]int64 `json:"unjudged" doc:"Nodes without a verdict, by the reason"`
	UnjudgedText string           `json:"unjudged_text,omitempty" doc:"Why no node of the group is judged, in a sentence: the reason of most; absent while some are"`
	Detectable   *float64         `json:"detectable,omitempty" doc:"Smallest loss of a node that is found within an hour now, a fraction; absent while no node is compared"`
	Stragglers   int              `json:"stragglers"`
	Threshold    *float64         `json:"threshold,omitempty" doc:"Score below which a node is a straggler"`
	Median       *float64         `json:"median,omitempty" doc:"Median score"`
	MAD          *float64         `json:"mad,omitempty" doc:"Median absolute deviation of the scores"`
	QuorumMet    bool             `json:"quorum_met"`
	CoverageLow  bool             `json:"coverage_low" doc:"Too many of the known nodes are missing"`
	Incident     bool             `json:"incident" doc:"The whole group stands out, not single nodes"`
	Signals      []GroupSignal    `json:"signals" doc:"Medians of what nodes are compared by"`
}

// GroupSignal is the median of a signal.
type GroupSignal struct {
	Signal    string   `json:"signal"`
	Median    float64  `json:"median"`
	Scale     *float64 `json:"scale,omitempty" doc:"Spread, as a fraction of the signal's level"`
	Threshold *float64 `json:"threshold,omitempty" doc:"Value below which a node is a straggler within a minute, in the signal's own unit"`
}

// Episode is a time in which a node or group stood out.
type Episode struct {
	episode.Episode
	Open       bool    `json:"open"`
	AgeSeconds float64 `json:"age_seconds" doc:"Since its figures were taken"`
	Duration   float64 `json:"duration_seconds" doc:"So far, for an open one"`
}

// Summary counts the fleet.
type Summary struct {
	At           time.Time      `json:"at"`
	Clusters     int            `json:"clusters"`
	Groups       int            `json:"groups"`
	Nodes        int            `json:"nodes"`
	GPUs         int            `json:"gpus" doc:"Without MIG slices, of nodes that are not missing"`
	NodesByState map[string]int `json:"nodes_by_state" doc:"Under unknown those that say nothing of it"`
	GPUsByHealth map[string]int `json:"gpus_by_health"`
	GPUsDown     int            `json:"gpus_down" doc:"That do not answer"`
	Stragglers   int            `json:"stragglers"`
	OpenEpisodes int            `json:"open_episodes"`
	Utilization  *float64       `json:"utilization,omitempty" doc:"Mean utilisation of the nodes"`
	Power        *float64       `json:"power_watts,omitempty"`
	MaxAge       float64        `json:"max_age_seconds" doc:"Of the node that has been silent longest"`
}

// Health is the state of the server.
type Health struct {
	Status  string           `json:"status" enum:"ok,degraded" doc:"degraded while the history cannot be written or read"`
	Version string           `json:"version"`
	Started time.Time        `json:"started"`
	Now     time.Time        `json:"now"`
	Nodes   int              `json:"nodes"`
	Streams int              `json:"streams" doc:"Clients of the live stream"`
	Dropped map[string]int64 `json:"dropped" doc:"The number of refused updates since the start, by reason"`
	History HistoryHealth    `json:"history"`
}

// HistoryHealth is the state of the history.
type HistoryHealth struct {
	Storage string     `json:"storage" doc:"none, sqlite or prometheus"`
	OK      bool       `json:"ok"`
	Error   string     `json:"error,omitempty"`
	Note    string     `json:"note,omitempty" doc:"A note for an operator though all is well, such as that a damaged file was put aside"`
	Dropped int64      `json:"dropped" doc:"Samples that were not kept"`
	Oldest  *time.Time `json:"oldest,omitempty"`
	Bytes   int64      `json:"bytes,omitempty"`
}

// Seen is a sign of life of a node whose view did not change.
type Seen struct {
	fleetstate.Key
	Sighting
	State string `json:"state,omitempty" doc:"As of a node: after a sign of life it may no longer be missing"`
}

// Snapshot is the full view that a stream begins with, in parts.
type Snapshot struct {
	At    time.Time `json:"at"`
	First bool      `json:"first" doc:"The earlier state is void"`
	Last  bool      `json:"last" doc:"The view is complete"`
	Nodes []Node    `json:"nodes,omitempty"`
	Brief []Brief   `json:"brief,omitempty" doc:"In place of nodes with brief=true"`
}

// Diff holds the changes since the event before it.
type Diff struct {
	At      time.Time        `json:"at"`
	Changed []Node           `json:"changed,omitempty"`
	Brief   []Brief          `json:"brief,omitempty" doc:"In place of changed with brief=true"`
	Seen    []Seen           `json:"seen,omitempty"`
	Removed []fleetstate.Key `json:"removed,omitempty" doc:"Gone, or no longer selected"`
}

// EpisodeList holds all open episodes of the selected clusters.
type EpisodeList struct {
	At       time.Time `json:"at"`
	Episodes []Episode `json:"episodes"`
}
