// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"encoding/binary"
	"math"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// allLinks is the scope of a field that is summed over the NVLinks (nvml.h).
const allLinks = math.MaxUint32

// A setter puts a field's value where it belongs. The target is empty before the
// batch, so a setter may add to it.
type setter func(*fields, *gpuhealth.Readings, value)

// field is one entry of the batch.
type field struct {
	id, scope uint32
	set       setter
	// spare, where it is there, reports whether another field of the batch, asked
	// before this one, has answered the same.
	spare func(*fields) bool
}

// value is the raw value of a field.
type value struct {
	kind gonvml.ValueType
	bits [8]byte
}

// fields is the batch of one GPU: what it was found not to support is not
// asked again while its handle lasts.
type fields struct {
	batch   []field
	raw     []gonvml.FieldValue
	numLink int
	built   bool
	io      [gpuhealth.NumDirections]wrapped
	// payload: the driver sums the bytes of all NVLinks.
	payload [gpuhealth.NumDirections]bool
}

// wrapped makes a cumulative count of a 32-bit counter that wraps.
type wrapped struct {
	seen  bool
	last  uint32
	total uint64
}

func (w *wrapped) add(v uint32) uint64 {
	switch {
	case !w.seen || v < w.last && v-w.last >= 1<<31:
		// Less than half way round is a wrap; a longer way back is a counter
		// that began anew.
		w.seen, w.total = true, uint64(v)
	default:
		// Modulo 2^32: what wrapped more than once between two polls is lost.
		w.total += uint64(v - w.last)
	}
	w.last = v
	return w.total
}

var nodeFields = []field{
	{id: gonvml.FI_DEV_MEMORY_TEMP, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[reading.MemoryTemperature] = v.float(1) }},
	{id: gonvml.FI_DEV_POWER_INSTANT, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[reading.Power] = v.float(1000) }},
	marginLimit(gonvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, reading.ShutdownMargin),
	marginLimit(gonvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, reading.SlowdownMargin),
	marginLimit(gonvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, reading.MaxMemoryMargin),
	marginLimit(gonvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, reading.MaxMargin),
	{id: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION, set: func(_ *fields, r *gpuhealth.Readings, v value) {
		r.RecoveryAction = gpuhealth.Some(gpuhealth.RecoveryAction(min(v.count(), math.MaxInt32)))
	}},
	{id: gonvml.FI_DEV_PCIE_REPLAY_COUNTER, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[reading.PCIeReplays] = v.float(1) }},
	{id: gonvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[reading.PCIeRollovers] = v.float(1) }},
	{id: gonvml.FI_DEV_PCIE_COUNT_TX_BYTES, set: pcieBytes(gpuhealth.Transmit)},
	{id: gonvml.FI_DEV_PCIE_COUNT_RX_BYTES, set: pcieBytes(gpuhealth.Receive)},
	throttled(gonvml.FI_DEV_PERF_POLICY_POWER, reading.PowerCapTime),
	throttled(gonvml.FI_DEV_PERF_POLICY_THERMAL, reading.ThermalTime),
	throttled(gonvml.FI_DEV_PERF_POLICY_SYNC_BOOST, reading.SyncBoostTime),
	throttled(gonvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, reading.BoardLimitTime),
	throttled(gonvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, reading.LowUtilizationTime),
	throttled(gonvml.FI_DEV_PERF_POLICY_RELIABILITY, reading.ReliabilityTime),
	throttled(gonvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, reading.SWThermalTime),
	throttled(gonvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, reading.HWThermalTime),
	throttled(gonvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, reading.PowerBrakeTime),
}

// linkFields are asked once for all links. 138 and 139 count payload, 140 and
// 141 the same with the overhead of the protocol (nvml.h).
var linkFields = []field{
	nvlinkBytes(gonvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, gpuhealth.LinkNVLink, gpuhealth.Transmit),
	nvlinkBytes(gonvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, gpuhealth.LinkNVLink, gpuhealth.Receive),
	// Up to Ampere the driver counts both kinds of CRC errors over all links.
	crcErrors(gonvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, gpuhealth.NVLinkCRCFlit),
	crcErrors(gonvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, gpuhealth.NVLinkCRCData),
}

// detailFields are asked once for all links where they are wanted.
var detailFields = []field{
	nvlinkBytes(gonvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX, gpuhealth.LinkNVLinkRaw, gpuhealth.Transmit),
	nvlinkBytes(gonvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX, gpuhealth.LinkNVLinkRaw, gpuhealth.Receive),
}

// perLink are asked for each link: 161 to 163 up to Hopper, the others from
// Blackwell on (nvml.h). The GPU reports which of them it has. nvml.h does
// not define which kinds of CRC errors field 163 counts, so it has a name apart.
func perLink(link uint32, detail bool) []field {
	one := func(id uint32, kind gpuhealth.NVLinkError) field {
		return ofLink(id, link, func(_ *gpuhealth.Readings, l *gpuhealth.NVLink, v value) { l.Errors[kind] = gpuhealth.Some(v.count()) })
	}
	batch := []field{
		stateOfLink(link),
		one(gonvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, gpuhealth.NVLinkReplay),
		one(gonvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, gpuhealth.NVLinkRecovery),
		one(gonvml.FI_DEV_NVLINK_ERROR_DL_CRC, gpuhealth.NVLinkCRC),
		one(gonvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, gpuhealth.NVLinkRecovery),
		one(gonvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, gpuhealth.NVLinkRecoveryFailed),
		one(gonvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, gpuhealth.NVLinkSymbol),
		linkBytes(gonvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, link, gpuhealth.Transmit),
		linkBytes(gonvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, link, gpuhealth.Receive),
	}
	if detail {
		batch = append(batch,
			one(gonvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, gpuhealth.NVLinkEffective),
			bitErrorRate(gonvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER, link, gpuhealth.BitErrorsSymbol),
			bitErrorRate(gonvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, link, gpuhealth.BitErrorsEffective),
		)
	}
	return batch
}

// ofLink is a field of one link.
func ofLink(id, link uint32, set func(*gpuhealth.Readings, *gpuhealth.NVLink, value)) field {
	return field{id: id, scope: link, set: func(_ *fields, r *gpuhealth.Readings, v value) {
		if int(link) < len(r.NVLink.PerLink) {
			set(r, &r.NVLink.PerLink[link], v)
		}
	}}
}

// stateOfLink is NVML_NVLINK_STATE_*: inactive, active, or asleep to save power.
// NCCL asks for it from Hopper on, and calls for the state of a link before.
func stateOfLink(link uint32) field {
	return ofLink(gonvml.FI_DEV_NVLINK_GET_STATE, link, func(r *gpuhealth.Readings, l *gpuhealth.NVLink, v value) {
		state := uint32(min(v.count(), math.MaxUint32))
		if state == gonvml.NVLINK_STATE_SLEEP {
			state = gonvml.NVLINK_STATE_ACTIVE
		}
		l.Up = r.YesNo(gpuhealth.FieldNVLinks, state)
	})
}

// linkBytes is what drivers that do not sum themselves count by link.
func linkBytes(id, link uint32, d gpuhealth.Direction) field {
	f := ofLink(id, link, func(_ *gpuhealth.Readings, l *gpuhealth.NVLink, v value) { l.IO[d] = gpuhealth.Some(v.count()) })
	f.spare = func(f *fields) bool { return f.payload[d] }
	return f
}

// bitErrorRate keeps the rate of the worst link. Bits 0 to 7 are the negative
// exponent and 8 to 11 the mantissa (nvml.h, NVML_NVLINK_BER_*).
func bitErrorRate(id, link uint32, kind gpuhealth.BitErrors) field {
	return field{id: id, scope: link, set: func(_ *fields, r *gpuhealth.Readings, v value) {
		n := v.count()
		if n >= 1<<12 {
			r.Garbage = append(r.Garbage, gpuhealth.FieldBitErrorRate)
			return
		}
		worst := &r.NVLink.BitErrorRate[kind]
		worst.V, worst.OK = max(worst.V, float64(n>>8)*math.Pow10(-int(n&0xff))), true
	}}
}

// marginLimit reads a T.Limit of an Ada or newer GPU.
func marginLimit(id uint32, limit reading.Field) field {
	return field{id: id, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[limit] = v.degrees() }}
}

func throttled(id uint32, which reading.Field) field {
	return field{id: id, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.Numbers[which] = v.float(1e9) }}
}

func crcErrors(id uint32, kind gpuhealth.NVLinkError) field {
	return field{id: id, set: func(_ *fields, r *gpuhealth.Readings, v value) { r.NVLink.Errors[kind] = gpuhealth.Some(v.count()) }}
}

func pcieBytes(d gpuhealth.Direction) setter {
	return func(f *fields, r *gpuhealth.Readings, v value) {
		n := v.count()
		if v.kind == gonvml.VALUE_TYPE_UNSIGNED_INT && n <= math.MaxUint32-256 { // above are small negative numbers
			n = f.io[d].add(uint32(n))
		}
		r.IO[gpuhealth.LinkPCIe][d] = gpuhealth.Some(n)
	}
}

func nvlinkBytes(id uint32, link gpuhealth.Link, d gpuhealth.Direction) field {
	return field{id: id, scope: allLinks, set: func(f *fields, r *gpuhealth.Readings, v value) {
		n := v.count()
		if n < math.MaxInt64>>10 && n != math.MaxUint32 {
			n <<= 10 // KiB
		}
		r.IO[link][d] = gpuhealth.Some(n)
		f.payload[d] = f.payload[d] || link == gpuhealth.LinkNVLink
	}}
}

// links begins a new batch when the number of links is another one.
func (f *fields) links(links []gpuhealth.NVLink, detail bool) {
	if f.built && len(links) == f.numLink {
		return
	}
	f.built, f.numLink = true, len(links)
	f.batch = append(f.batch[:0], nodeFields...)
	if len(links) > 0 {
		f.batch = append(f.batch, linkFields...)
		if detail {
			f.batch = append(f.batch, detailFields...)
		}
		for l := range links {
			f.batch = append(f.batch, perLink(uint32(l), detail)...)
		}
	}
	f.raw = make([]gonvml.FieldValue, len(f.batch))
}

// readFields is the one batched field read of a poll.
func readFields(d *device, r *gpuhealth.Readings, t *tally) {
	f := &d.fields
	if len(f.batch) == 0 {
		return
	}
	f.ask(f.raw, f.batch)
	_, code := guarded(d.library, fnFieldValues, func() (struct{}, gonvml.Return) { return struct{}{}, d.raw.GetFieldValues(f.raw) })
	if code == InvalidArgument {
		// One field that the driver cannot stand spoils the batch
		// (dcgm-exporter#581): find it, once, by asking each alone.
		d.readEachField(t)
	} else if code != Success {
		if t.ok(code); code.unsupported() {
			f.batch, f.raw = nil, nil // what has a call of its own is called
		}
		return
	}

	kept := f.batch[:0]
	for i, one := range f.batch {
		v := &f.raw[i]
		switch code := Code(v.NvmlReturn); {
		case one.spare != nil && one.spare(f), code.tryOlder():
			continue
		case t.ok(code):
			one.set(f, r, value{kind: gonvml.ValueType(v.ValueType), bits: v.Value})
		}
		kept = append(kept, one)
	}
	f.batch, f.raw = kept, f.raw[:len(kept)]
}

func (*fields) ask(raw []gonvml.FieldValue, batch []field) {
	for i, one := range batch {
		raw[i] = gonvml.FieldValue{FieldId: one.id, ScopeId: one.scope}
	}
}

func (d *device) readEachField(t *tally) {
	f := &d.fields
	for i := range f.raw {
		alone := f.raw[i : i+1]
		f.ask(alone, f.batch[i:i+1])
		_, code := guarded(d.library, fnFieldValues, func() (struct{}, gonvml.Return) { return struct{}{}, d.raw.GetFieldValues(alone) })
		if !t.ok(code) {
			alone[0].NvmlReturn = uint32(code)
		}
		if t.gone != Success {
			return
		}
	}
}

// count is the value as a count. A negative number, or a type that NVML does not
// have, becomes more than any counter can be.
func (v value) count() uint64 {
	switch v.kind {
	case gonvml.VALUE_TYPE_UNSIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v.bits[:]))
	case gonvml.VALUE_TYPE_UNSIGNED_LONG, gonvml.VALUE_TYPE_UNSIGNED_LONG_LONG, gonvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(v.bits[:])
	case gonvml.VALUE_TYPE_SIGNED_INT:
		return uint64(int64(int32(binary.NativeEndian.Uint32(v.bits[:]))))
	case gonvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(v.bits[:]))
	}
	return math.MaxUint64
}

// degrees is the value as a temperature that may be below zero, whichever way
// the driver types it. The one value that NVML keeps for "not available" is a
// temperature in a signed field only.
func (v value) degrees() gpuhealth.Opt[float64] {
	if n := v.count(); v.kind == gonvml.VALUE_TYPE_UNSIGNED_INT && n != math.MaxUint32 {
		return gpuhealth.Some(float64(int32(n)))
	}
	return v.float(1)
}

// float is the value divided by div. A signed field may be below zero.
func (v value) float(div float64) gpuhealth.Opt[float64] {
	switch v.kind {
	case gonvml.VALUE_TYPE_DOUBLE:
		return gpuhealth.Some(math.Float64frombits(binary.NativeEndian.Uint64(v.bits[:])) / div)
	case gonvml.VALUE_TYPE_SIGNED_INT, gonvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return gpuhealth.Some(float64(int64(v.count())) / div)
	}
	return gpuhealth.Some(float64(v.count()) / div)
}
