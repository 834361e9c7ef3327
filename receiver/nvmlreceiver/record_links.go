// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

var links = [gpuhealth.NumLinks]metadata.AttributeGpuLink{
	gpuhealth.LinkPCIe:      metadata.AttributeGpuLinkPcie,
	gpuhealth.LinkNVLink:    metadata.AttributeGpuLinkNvlink,
	gpuhealth.LinkNVLinkRaw: metadata.AttributeGpuLinkNvlinkRaw,
}

var directions = [gpuhealth.NumDirections]metadata.AttributeNetworkIoDirection{
	gpuhealth.Transmit: metadata.AttributeNetworkIoDirectionTransmit,
	gpuhealth.Receive:  metadata.AttributeNetworkIoDirectionReceive,
}

func (r *recorder) pcie() {
	for l, link := range links {
		for d, direction := range directions {
			if v := r.s.IO[l][d]; v.OK && (r.full || l != int(gpuhealth.LinkNVLinkRaw)) {
				r.mb.RecordHwGpuIoDataPoint(r.ts, int64(v.V), r.id, direction, link, r.parent...)
			}
		}
	}
	p := &r.s.PCIe
	if p.Width.OK {
		r.mb.RecordHwGpuPcieLinkWidthDataPoint(r.ts, int64(p.Width.V), r.id, metadata.AttributeLinkKindCurrent, r.parent...)
	}
	if p.WidthMax.OK {
		r.mb.RecordHwGpuPcieLinkWidthDataPoint(r.ts, int64(p.WidthMax.V), r.id, metadata.AttributeLinkKindMax, r.parent...)
	}
	if p.Generation.OK {
		r.mb.RecordHwGpuPcieLinkGenerationDataPoint(r.ts, int64(p.Generation.V), r.id, metadata.AttributeLinkKindCurrent, r.parent...)
	}
	if p.GenerationMax.OK && r.full {
		r.mb.RecordHwGpuPcieLinkGenerationDataPoint(r.ts, int64(p.GenerationMax.V), r.id, metadata.AttributeLinkKindMax, r.parent...)
	}
	if p.Replays.OK {
		r.mb.RecordHwGpuPcieReplaysDataPoint(r.ts, int64(p.Replays.V), r.id, metadata.AttributeReplayKindReplay, r.parent...)
	}
	if p.Rollovers.OK && r.full {
		r.mb.RecordHwGpuPcieReplaysDataPoint(r.ts, int64(p.Rollovers.V), r.id, metadata.AttributeReplayKindRollover, r.parent...)
	}
}

var nvlinkErrors = [gpuhealth.NumNVLinkErrors]metadata.AttributeNvlinkErrorType{
	gpuhealth.NVLinkReplay:         metadata.AttributeNvlinkErrorTypeReplay,
	gpuhealth.NVLinkRecovery:       metadata.AttributeNvlinkErrorTypeRecovery,
	gpuhealth.NVLinkCRCFlit:        metadata.AttributeNvlinkErrorTypeCrcFlit,
	gpuhealth.NVLinkCRCData:        metadata.AttributeNvlinkErrorTypeCrcData,
	gpuhealth.NVLinkCRC:            metadata.AttributeNvlinkErrorTypeCrc,
	gpuhealth.NVLinkEffective:      metadata.AttributeNvlinkErrorTypeEffective,
	gpuhealth.NVLinkSymbol:         metadata.AttributeNvlinkErrorTypeSymbol,
	gpuhealth.NVLinkRecoveryFailed: metadata.AttributeNvlinkErrorTypeRecoveryFailed,
}

var bitErrors = [gpuhealth.NumBitErrors]metadata.AttributeBitErrors{
	gpuhealth.BitErrorsSymbol:    metadata.AttributeBitErrorsSymbol,
	gpuhealth.BitErrorsEffective: metadata.AttributeBitErrorsEffective,
}

// linkErrors reports whether a kind of errors has a point. The older counters
// of CRC errors say nothing new beside the newest.
func (r *recorder) linkErrors(kind gpuhealth.NVLinkError) bool {
	switch kind {
	case gpuhealth.NVLinkEffective:
		return r.full
	case gpuhealth.NVLinkCRCFlit, gpuhealth.NVLinkCRCData:
		return r.full || !r.s.NVLink.Errors[gpuhealth.NVLinkCRC].OK
	default:
		return true
	}
}

func (r *recorder) nvlink() {
	n := &r.s.NVLink
	if n.Up.OK {
		r.mb.RecordHwGpuNvlinkLinksDataPoint(r.ts, int64(n.Up.V), r.id, metadata.AttributeNvlinkStateUp, r.parent...)
	}
	if n.Down.OK && r.tells(setLinks, 0, n.Down.V > 0, false) {
		r.mb.RecordHwGpuNvlinkLinksDataPoint(r.ts, int64(n.Down.V), r.id, metadata.AttributeNvlinkStateDown, r.parent...)
	}
	for i, kind := range nvlinkErrors {
		if v := n.Errors[i]; v.OK && r.linkErrors(gpuhealth.NVLinkError(i)) {
			r.mb.RecordHwGpuNvlinkErrorsDataPoint(r.ts, int64(v.V), r.id, kind, r.parent...)
		}
	}
	for i, kind := range bitErrors {
		if v := n.BitErrorRate[i]; v.OK {
			r.mb.RecordHwGpuNvlinkBitErrorRateDataPoint(r.ts, v.V, r.id, kind, r.parent...)
		}
	}
	for id := range n.PerLink {
		link := &n.PerLink[id]
		if link.Up.OK {
			r.mb.RecordHwGpuNvlinkLinkUpDataPoint(r.ts, oneIf(link.Up.V), r.id, int64(id), r.parent...)
		}
		for i, kind := range nvlinkErrors {
			if v := link.Errors[i]; v.OK {
				r.mb.RecordHwGpuNvlinkLinkErrorsDataPoint(r.ts, int64(v.V), r.id, int64(id), kind, r.parent...)
			}
		}
	}
}

var fabricStates = [gpuhealth.NumFabricStates]metadata.AttributeFabricState{
	gpuhealth.FabricNotSupported: metadata.AttributeFabricStateNotSupported,
	gpuhealth.FabricNotStarted:   metadata.AttributeFabricStateNotStarted,
	gpuhealth.FabricInProgress:   metadata.AttributeFabricStateInProgress,
	gpuhealth.FabricCompleted:    metadata.AttributeFabricStateCompleted,
}

var fabricConditions = [gpuhealth.NumFabricConditions]metadata.AttributeFabricCondition{
	gpuhealth.FabricDegradedBandwidth:      metadata.AttributeFabricConditionDegradedBandwidth,
	gpuhealth.FabricRouteRecovery:          metadata.AttributeFabricConditionRouteRecovery,
	gpuhealth.FabricRouteUnhealthy:         metadata.AttributeFabricConditionRouteUnhealthy,
	gpuhealth.FabricAccessTimeout:          metadata.AttributeFabricConditionAccessTimeout,
	gpuhealth.FabricIncorrectConfiguration: metadata.AttributeFabricConditionIncorrectConfiguration,
}

// fabric always says whether the GPU has joined and whether all is well. Other
// states and conditions have a point from when they first hold.
func (r *recorder) fabric() {
	f := &r.s.Fabric
	if f.State.OK && (f.State.V != gpuhealth.FabricNotSupported || r.full) {
		for i, state := range fabricStates {
			in := f.State.V == gpuhealth.FabricState(i)
			if r.tells(setFabricState, i, in, i == int(gpuhealth.FabricCompleted)) {
				r.mb.RecordHwGpuFabricStateDataPoint(r.ts, oneIf(in), r.id, state, r.parent...)
			}
		}
	}
	for i, condition := range fabricConditions {
		if v := f.Conditions[i]; v.OK && r.tells(setFabricHealth, i, v.V, false) {
			r.mb.RecordHwGpuFabricHealthDataPoint(r.ts, oneIf(v.V), r.id, condition, r.parent...)
		}
	}
	if f.Summary.OK && f.Summary.V != gpuhealth.FabricSummaryNotSupported {
		unhealthy := f.Summary.V == gpuhealth.FabricSummaryUnhealthy
		r.mb.RecordHwGpuFabricHealthDataPoint(r.ts, oneIf(unhealthy), r.id, metadata.AttributeFabricConditionUnhealthy, r.parent...)
		limited := f.Summary.V == gpuhealth.FabricSummaryLimitedCapacity
		if r.tells(setFabricHealth, len(fabricConditions), limited, false) {
			r.mb.RecordHwGpuFabricHealthDataPoint(r.ts, oneIf(limited), r.id, metadata.AttributeFabricConditionLimitedCapacity, r.parent...)
		}
	}
}
