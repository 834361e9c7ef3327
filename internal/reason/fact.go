// SPDX-License-Identifier: Apache-2.0

// Package reason says why a node is slow. It keeps the facts of each node's GPUs.
// For an accused node it runs an ordered table of rules over the facts, and compares
// with the node's peers. It is pure: it knows neither pdata nor a clock.
//
// A Store takes readings (Store.Node, Node.Put and its siblings) and answers
// Explain. It does not decide who is slow, and which signal accused the node
// plays no part in the answer: a slow clock shows as low throughput as well.
package reason // import "github.com/gpu-collector/gpu-collector/internal/reason"

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Fact is one thing known of a GPU, of a network adapter or of a node, over
// the window that an explanation is asked for.
type Fact uint8

// The facts. A count, or a time in seconds, is its growth in the window. A flag is 1
// when it held at any time in the window. The others are the last reading.
const (
	GPULost Fact = iota
	GPUSilent
	XidOffBus
	XidMemory
	XidReset
	XidNVLink
	LastXid
	ECCUncorrected
	RemapFailed
	RemapPending
	RetirementPending
	PowerBrake
	PowerBrakeTime
	HWThermal
	HWThermalTime
	SWThermal
	SWThermalTime
	HWSlowdown
	PowerCap
	SMClock
	Temperature
	Power
	PowerLimit
	PCIeGeneration
	PCIeSpeed
	PCIeWidth
	PCIeReplays
	NVLinkReplays
	NVLinkCRC
	NVLinksUp
	NetworkErrors
	NetworkBandwidth
	CPUPressure
	CPUSteal
	LoadAverage
	HostMemory
	GPUMemory
	Processes
	Utilization
	NumFacts
)

// scope says what a fact is a fact of.
type scope uint8

const (
	ofGPU scope = iota
	ofAdapter
	ofNode
)

type factInfo struct {
	name, unit string
	what       string // for people
	scope      scope
	low        bool // low is bad
	form       form
}

// form is how people read a fact's values.
type form uint8

const (
	number form = iota
	yes         // that it holds says all, or that it was above 0
	share
	events // of which the code says more
	xid
)

var facts = [NumFacts]factInfo{
	GPULost:           {name: "gpu_lost", unit: "1", what: "the driver lost the GPU, or no longer finds it", form: yes},
	GPUSilent:         {name: "gpu_silent", unit: "1", what: "the GPU does not answer for another reason", form: yes},
	XidOffBus:         {name: "xid_off_bus", unit: "{event}", what: "Xid " + codesOf(XidOffBus), form: events},
	XidMemory:         {name: "xid_memory", unit: "{event}", what: "Xids of the memory: " + codesOf(XidMemory), form: events},
	XidReset:          {name: "xid_reset", unit: "{event}", what: "Xids whose advice by NVIDIA is a reset or service: " + codesOf(XidReset), form: events},
	XidNVLink:         {name: "xid_nvlink", unit: "{event}", what: "Xids of NVLink: " + codesOf(XidNVLink), form: events},
	LastXid:           {name: "last_xid", unit: "1", what: "code of the newest of these Xids", form: xid},
	ECCUncorrected:    {name: "ecc_uncorrected", unit: "{error}", what: "uncorrectable memory errors"},
	RemapFailed:       {name: "remap_failed", unit: "1", what: "a row of memory could not be remapped", form: yes},
	RemapPending:      {name: "remap_pending", unit: "1", what: "a row of memory waits for a reset to be remapped", form: yes},
	RetirementPending: {name: "retirement_pending", unit: "1", what: "a page of memory waits for a reset to be retired", form: yes},
	PowerBrake:        {name: "power_brake", unit: "1", what: "the power brake held the clocks down", form: yes},
	PowerBrakeTime:    {name: "power_brake_time", unit: "s", what: "the power brake held the clocks down for a time", form: yes},
	HWThermal:         {name: "hw_thermal", unit: "1", what: "the hardware held the clocks down because of heat", form: yes},
	HWThermalTime:     {name: "hw_thermal_time", unit: "s", what: "the hardware held the clocks down for a time because of heat", form: yes},
	SWThermal:         {name: "sw_thermal", unit: "1", what: "the driver held the clocks down because of heat", form: yes},
	SWThermalTime:     {name: "sw_thermal_time", unit: "s", what: "the driver held the clocks down for a time because of heat", form: yes},
	HWSlowdown:        {name: "hw_slowdown", unit: "1", what: "the hardware held the clocks down", form: yes},
	PowerCap:          {name: "power_cap", unit: "1", what: "the power limit held the clocks down", form: yes},
	SMClock:           {name: "sm_clock", unit: "1", what: "SM clock, fraction of its highest, while the GPU works", low: true, form: share},
	Temperature:       {name: "temperature", unit: "Cel", what: "temperature of the GPU"},
	Power:             {name: "power", unit: "W", what: "power drawn"},
	PowerLimit:        {name: "power_limit", unit: "W", what: "power limit in force", low: true},
	PCIeGeneration:    {name: "pcie_generation", unit: "1", what: "generation of the PCIe link, while the GPU works", low: true},
	PCIeSpeed:         {name: "pcie_speed", unit: "1", what: "the same, fraction of the best that GPU and slot can do", low: true, form: share},
	PCIeWidth:         {name: "pcie_width", unit: "1", what: "lanes of the PCIe link, fraction of the most that GPU and slot can do", low: true, form: share},
	PCIeReplays:       {name: "pcie_replays", unit: "{replay}", what: "retransmissions on the PCIe link"},
	NVLinkReplays:     {name: "nvlink_replays", unit: "{error}", what: "replays and recoveries on the NVLinks"},
	NVLinkCRC:         {name: "nvlink_crc", unit: "{error}", what: "CRC errors on the NVLinks"},
	NVLinksUp:         {name: "nvlinks_up", unit: "{link}", what: "NVLinks that are up", low: true},
	NetworkErrors:     {name: "network_errors", unit: "{error}", what: "errors of a network adapter", scope: ofAdapter},
	NetworkBandwidth:  {name: "network_bandwidth", unit: "By/s", what: "bandwidth of the links of all network adapters together", scope: ofNode, low: true},
	CPUPressure:       {name: "cpu_pressure", unit: "1", what: "share of time while some task waited for a CPU", scope: ofNode, form: share},
	CPUSteal:          {name: "cpu_steal", unit: "1", what: "share of CPU time that the hypervisor took", scope: ofNode, form: share},
	LoadAverage:       {name: "load_average", unit: "{thread}", what: "runnable tasks, mean of a minute", scope: ofNode},
	HostMemory:        {name: "host_memory", unit: "1", what: "memory of the host in use, fraction", scope: ofNode, form: share},
	GPUMemory:         {name: "gpu_memory", unit: "1", what: "memory of the GPU in use, fraction", form: share},
	Processes:         {name: "processes", unit: "{process}", what: "processes that compute on the GPU"},
	Utilization:       {name: "utilization", unit: "1", what: "share of time while the GPU was busy", low: true, form: share},
}

// String returns the fact's name in snake_case.
func (f Fact) String() string { return facts[f].name }

// Unit returns the unit of the fact's values, as in UCUM.
func (f Fact) Unit() string { return facts[f].unit }

// worse returns how far x is on the bad side of y.
func (f Fact) worse(x, y float64) float64 {
	if facts[f].low {
		return y - x
	}
	return x - y
}

// Facts are made of fields of the catalogue, kept by their place: flags, 1 while
// they hold, then gauges, then cumulative counters. Those of a node are gauges.
const (
	firstFlag    = reading.RemapFailed
	firstGauge   = reading.SMClock
	firstCounter = reading.ECCUncorrected
	lastCounter  = reading.SWThermalTime
	numFlags     = int(firstGauge - firstFlag)
	numGauges    = int(firstCounter - firstGauge)
	numCounters  = int(lastCounter-firstCounter) + 1

	firstOfNode = reading.CPUPressure
	lastOfNode  = reading.GPUsFound
)

// OfGPU reports whether Put takes the field.
func OfGPU(f reading.Field) bool { return f >= firstFlag && f <= lastCounter }

// OfNode reports whether PutNode takes the field.
func OfNode(f reading.Field) bool { return f >= firstOfNode && f <= lastOfNode }

// counted is the fact that a counter adds to.
var counted = [numCounters]Fact{
	reading.ECCUncorrected - firstCounter: ECCUncorrected,
	reading.PCIeReplays - firstCounter:    PCIeReplays,
	reading.NVLinkReplay - firstCounter:   NVLinkReplays,
	reading.NVLinkRecovery - firstCounter: NVLinkReplays,
	reading.NVLinkCRCFlit - firstCounter:  NVLinkCRC,
	reading.NVLinkCRCData - firstCounter:  NVLinkCRC,
	reading.NVLinkCRC - firstCounter:      NVLinkCRC,
	reading.PowerBrakeTime - firstCounter: PowerBrakeTime,
	reading.HWThermalTime - firstCounter:  HWThermalTime,
	reading.SWThermalTime - firstCounter:  SWThermalTime,
}

// Up is whether a GPU answers.
type Up uint8

// Whether a GPU answers; it is not known until a reading says so.
const (
	UpUnknown Up = iota
	UpAnswers
	UpLost   // lost by the driver, or no longer found
	UpSilent // does not answer for another reason
)

// xidFacts says what an Xid is evidence of, after the catalogue of the rubric.
var xidFacts = func() map[uint16]Fact {
	of := map[gpuhealth.XidEvidence]Fact{
		gpuhealth.XidOfBus: XidOffBus, gpuhealth.XidOfMemory: XidMemory, gpuhealth.XidOfNVLink: XidNVLink, gpuhealth.XidOfReset: XidReset,
	}
	m := map[uint16]Fact{}
	for _, x := range gpuhealth.DefaultRubric().Xids() {
		if fact, ok := of[x.Evidence()]; ok {
			m[uint16(x.Code)] = fact
		}
	}
	return m
}()

// codesOf are the codes that are evidence of the fact, for people.
func codesOf(f Fact) string {
	var codes []string
	for _, code := range slices.Sorted(maps.Keys(xidFacts)) {
		if xidFacts[code] == f {
			codes = append(codes, strconv.Itoa(int(code)))
		}
	}
	return strings.Join(codes, ", ")
}
