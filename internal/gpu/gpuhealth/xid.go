// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"strconv"
	"time"
)

// XidClass groups Xids by their meaning for the GPU.
type XidClass string

// The classes. They are values of the attribute `gpu.xid.class`.
const (
	XidApplication      XidClass = "application"
	XidInformational    XidClass = "informational"
	XidSecondary        XidClass = "secondary"
	XidContainedMemory  XidClass = "contained_memory"
	XidReset            XidClass = "reset_gpu"
	XidUncorrectableECC XidClass = "uncorrectable_ecc"
	XidNVLink           XidClass = "nvlink"
	XidNode             XidClass = "node"
	XidHardware         XidClass = "hardware"
	XidUnknown          XidClass = "unknown"
)

// Xid is what is known of one Xid code.
type Xid struct {
	Code  uint64
	Class XidClass
	// Immediate is the immediate action of NVIDIA's catalogue in its own
	// words, empty where the catalogue has none.
	Immediate string
	// Action is ours.
	Action Action
	// Cap is the highest score while the event counts; NoCap has no effect.
	Cap    int
	Clears Clears
	// Ends is the code whose finding this event ends, 0 for none.
	Ends uint64
	Off  bool
}

// Reason is the name under which the Xid is reported as a reason.
func (x Xid) Reason() string { return "xid_" + strconv.FormatUint(x.Code, 10) }

// XidEvidence is what a Xid shows of why a node is slow.
type XidEvidence uint8

// The kinds of evidence.
const (
	XidNoEvidence XidEvidence = iota
	XidOfBus
	XidOfMemory
	XidOfNVLink
	XidOfReset // NVIDIA asks for a reset, a reboot or service
)

// Evidence follows from class and action: an explanation of a node judges a code as
// the rubric does.
func (x Xid) Evidence() XidEvidence {
	asks := x.Action == ActionResetGPU || x.Action == ActionReboot || x.Action == ActionService
	switch {
	case x.Code == xidOffBus:
		return XidOfBus
	case x.Class == XidContainedMemory, x.Class == XidUncorrectableECC:
		return XidOfMemory
	case x.Class == XidNVLink:
		return XidOfNVLink
	case asks:
		return XidOfReset
	default:
		return XidNoEvidence
	}
}

// Codes with a rule of their own.
const (
	xidRowRemapFailure = 64
	xidOffBus          = 79
	xidContained       = 94
)

const (
	xidQuiet = time.Hour
	// capUnknownXid: a code without a class is worth a look.
	capUnknownXid = 50
)

// span is a run of codes, both ends in it.
type span struct{ first, last uint64 }

// CatalogueRead is when the catalogue was last read code by code.
const CatalogueRead = "2026-11-27"

// catalogue is NVIDIA's Xid catalogue, 1 to 172
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), by class and
// effect; class and immediate action are NVIDIA's, caps are our judgement. Codes
// that NVIDIA calls unused are left out: their meaning is unknown.
var catalogue = []struct {
	codes []span
	xid   Xid
}{
	{
		[]span{{8, 8}, {11, 11}, {13, 13}, {25, 25}, {31, 32}, {39, 41}, {60, 60}, {68, 72}, {75, 77}, {80, 80}, {82, 86}, {88, 89}, {96, 105}, {126, 135}, {139, 139}},
		Xid{Class: XidApplication, Immediate: "RESTART_APP", Action: ActionRestartApp, Cap: NoCap, Clears: quiet},
	},
	// By NVIDIA both are an application's fault, as 31 is.
	{[]span{{43, 43}, {137, 137}}, Xid{Class: XidApplication, Immediate: "IGNORE", Action: ActionNone, Cap: NoCap, Clears: quiet}},
	// Rule ecc_corrected_rate covers 92, a high rate of corrected errors.
	{
		[]span{{14, 14}, {37, 38}, {44, 44}, {63, 63}, {66, 67}, {92, 93}, {106, 108}, {121, 121}, {141, 141}, {152, 153}, {157, 157}, {160, 161}},
		Xid{Class: XidInformational, Immediate: "IGNORE", Action: ActionNone, Cap: NoCap, Clears: quiet},
	},
	// A vGPU that does not fit its guest.
	{[]span{{78, 78}}, Xid{Class: XidInformational, Immediate: "UPDATE_SWFW", Action: ActionNone, Cap: NoCap, Clears: quiet}},
	// Power smoothing is engaged again; 163 reports that it no longer is.
	{[]span{{162, 162}}, Xid{Class: XidInformational, Action: ActionNone, Cap: NoCap, Clears: quiet, Ends: 163}},
	// These explain another Xid or point to the driver's recovery action.
	{[]span{{45, 45}}, Xid{Class: XidSecondary, Immediate: "WORKFLOW_XID_45", Action: ActionNone, Cap: NoCap, Clears: quiet}},
	{[]span{{154, 154}}, Xid{Class: XidSecondary, Immediate: "XID_154", Action: ActionNone, Cap: NoCap, Clears: quiet}},
	{[]span{{171, 172}}, Xid{Class: XidSecondary, Action: ActionNone, Cap: NoCap, Clears: quiet}},
	{
		[]span{{xidContained, xidContained}},
		Xid{Class: XidContainedMemory, Immediate: "RESTART_APP", Action: ActionRestartApp, Cap: 50, Clears: Clears{By: ClearsRemap, After: xidQuiet}},
	},
	{
		[]span{{46, 46}, {62, 62}, {xidRowRemapFailure, xidRowRemapFailure}, {95, 95}, {109, 110}, {119, 120}, {136, 136}, {140, 140}, {143, 143}, {155, 156}, {158, 158}},
		Xid{Class: XidReset, Immediate: "RESET_GPU", Action: ActionResetGPU, Cap: 20, Clears: reload},
	},
	{[]span{{48, 48}}, Xid{Class: XidUncorrectableECC, Immediate: "WORKFLOW_XID_48", Action: ActionResetGPU, Cap: 20, Clears: reload}},
	{[]span{{74, 74}}, Xid{Class: XidNVLink, Immediate: "WORKFLOW_NVLINK_ERR", Action: ActionResetGPU, Cap: 20, Clears: reload}},
	// NVLink 5: whether they are fatal is in a sub-code that is not in NVML's event.
	{[]span{{144, 150}}, Xid{Class: XidNVLink, Immediate: "WORKFLOW_NVLINK5_ERR", Action: ActionRestartApp, Cap: 50, Clears: quiet}},
	{
		[]span{{xidOffBus, xidOffBus}},
		Xid{Class: XidNode, Immediate: "RESTART_BM", Action: ActionReboot, Cap: 0, Clears: Clears{By: ClearsAnswer}},
	},
	{[]span{{151, 151}}, Xid{Class: XidNode, Immediate: "RESTART_VM", Action: ActionReboot, Cap: 20, Clears: reload}},
	{[]span{{54, 54}}, Xid{Class: XidHardware, Immediate: "CHECK_MECHANICALS", Action: ActionService, Cap: 20, Clears: reload}},
	{[]span{{142, 142}}, Xid{Class: XidHardware, Immediate: "CONTACT_SUPPORT", Action: ActionNone, Cap: 50, Clears: quiet}},
	// A reset where unified memory is in use, as with CUDA.
	{[]span{{159, 159}}, Xid{Class: XidHardware, Immediate: "CHECK_UVM", Action: ActionResetGPU, Cap: 50, Clears: quiet}},
	{[]span{{163, 170}}, Xid{Class: XidHardware, Action: ActionNone, Cap: 50, Clears: quiet}},
}

// quiet is for Xids that need no reset.
var quiet = Clears{By: ClearsQuiet, After: xidQuiet}

// defaultXids is the catalogue by code.
func defaultXids() map[uint64]Xid {
	m := map[uint64]Xid{}
	for _, row := range catalogue {
		for _, s := range row.codes {
			for code := s.first; code <= s.last; code++ {
				x := row.xid
				x.Code = code
				m[code] = x
			}
		}
	}
	return m
}

// unknownXid is what a code gets that the catalogue does not have.
func unknownXid(code uint64) Xid {
	return Xid{Code: code, Class: XidUnknown, Action: ActionNone, Cap: capUnknownXid, Clears: quiet}
}
