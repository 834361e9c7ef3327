// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"context"
	"fmt"
	"slices"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// NewLibrary returns NVML at the path, or where the dynamic linker finds
// libnvidia-ml.so.1 when the path is empty. Nothing is loaded before Open.
func NewLibrary(path string, failure Failure, timing Timing) Library {
	return &library{path: path, failure: failure, timing: timing}
}

type library struct {
	path    string
	failure Failure
	timing  Timing // nil: not timed
	binding *binding
}

func (l *library) Open() error {
	b, err := bind(l.path)
	if err != nil {
		return err
	}
	l.binding = b
	return nil
}

func (l *library) Init() Code {
	_, code := guarded(l, fnInit, func() (struct{}, gonvml.Return) { return struct{}{}, l.binding.raw.Init() })
	return code
}

func (l *library) Shutdown() Code {
	_, code := guarded(l, fnShutdown, func() (struct{}, gonvml.Return) { return struct{}{}, l.binding.raw.Shutdown() })
	return code
}

func (l *library) Versions() (driver, cuda string) {
	driver, code := guarded(l, fnDriverVersion, l.binding.raw.SystemGetDriverVersion)
	if code != Success {
		driver = ""
	}
	v, code := guarded(l, fnCUDAVersion, l.binding.raw.SystemGetCudaDriverVersion)
	if code == Success {
		// nvml.h: 1000 * major + 10 * minor.
		cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return driver, cuda
}

func (l *library) DeviceCount() (int, Code) {
	n, code := guarded(l, fnDeviceCount, l.binding.raw.DeviceGetCount)
	if code == Success && (n < 0 || n > roster.MaxGPUs) {
		// Each would have a worker.
		return 0, NoData
	}
	return n, code
}

func (l *library) Device(index int) (Device, Code) {
	raw, code := guarded(l, fnDeviceByIndex, func() (gonvml.Device, gonvml.Return) { return l.binding.raw.DeviceGetHandleByIndex(index) })
	if code != Success {
		return nil, code
	}
	return &device{library: l, index: index, raw: raw}, Success
}

func (l *library) NewEvents() (Events, Code) {
	set, code := guarded(l, fnEventCreate, l.binding.raw.EventSetCreate)
	if code != Success {
		return nil, code
	}
	return &events{library: l, raw: set, uuids: map[any]string{}}, Success
}

type device struct {
	library *library
	index   int
	raw     gonvml.Device
	uuid    string

	slow    gpuhealth.Readings // of the last slow reading
	wasSlow bool
	// links is how many NVLinks there are, once they were counted.
	links        int
	linksCounted bool
	noFabric     bool // until the next slow reading
	recheck      bool // the slow readings are due again at the next poll
	fields       fields
	wholeMIG     bool // the GPU does not know MIG
	activity     map[uint32]*activity
}

func (d *device) Identity() (gpuhealth.Identity, Code) {
	uuid, failed := guarded(d.library, fnUUID, d.raw.GetUUID)
	id := gpuhealth.Identity{UUID: uuid, Index: d.index}
	if v, code := guarded(d.library, fnPCIInfo, d.raw.GetPciInfo); code == Success {
		id.PCIBusID = cString(v.BusId[:])
	}
	if failed == Success && uuid == "" {
		failed = NoData // nothing can be reported of a GPU without a name
	}
	if failed != Success {
		id.UUID = ""
		return id, failed
	}
	d.uuid = uuid
	putText := func(fn function, call func() (string, gonvml.Return), to *string) {
		if v, code := guarded(d.library, fn, call); code == Success {
			*to = v
		}
	}
	putText(fnName, d.raw.GetName, &id.Model)
	putText(fnSerial, d.raw.GetSerial, &id.Serial)
	putText(fnVBIOS, d.raw.GetVbiosVersion, &id.VBIOS)
	if n, code := guarded(d.library, fnMinor, d.raw.GetMinorNumber); code == Success {
		id.Minor = count32(n)
	}
	return id, Success
}

func (d *device) Read(ctx context.Context, request Request, into *Answer) Code {
	var t tally
	// A read that was cut short is no answer: its missing readings would
	// look like unsupported readings.
	over := func() bool { return t.gone != Success || ctx.Err() != nil }
	end := func() Code {
		if t.gone == Success && ctx.Err() != nil {
			return Timeout
		}
		return t.verdict()
	}
	fresh := request.Slow || !d.wasSlow || d.recheck
	if fresh {
		before := d.slow
		d.noFabric = false
		d.slow, d.wasSlow = gpuhealth.Readings{}, false
		for _, read := range slowReaders {
			read(d, &d.slow, &t)
			if over() {
				return end()
			}
		}
		// A memory that got worse is asked for again at the next poll: a single
		// answer condemns no board, and a minute is long to wait for the next.
		d.recheck = worseMemory(&before, &d.slow)
		d.wasSlow = true
		d.fields.links(d.slow.NVLink.PerLink, request.Detail)
	}
	into.Readings = d.slow
	into.Cached = !fresh
	// The sample's own: its reader may write to it.
	into.NVLink.PerLink = slices.Clone(d.slow.NVLink.PerLink)
	into.Garbage = slices.Clone(d.slow.Garbage)
	// The driver knows settings of a GPU that no longer answers.
	t = tally{}
	for _, read := range fastReaders {
		read(d, &into.Readings, &t)
		if over() {
			return end()
		}
	}
	if code := t.verdict(); code != Success {
		return code
	}
	d.readSlices(ctx, request, into, &t)
	if request.Activity && !over() {
		d.readActivity(into, &t)
	}
	into.NVLink.SumsOnly = !request.PerLink
	return end()
}

// cString is the text before the first NUL of a C array; go-nvml has such
// arrays as int8 or uint8, by version.
func cString[T int8 | uint8](chars []T) string {
	text := make([]byte, 0, len(chars))
	for _, c := range chars {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	return string(text)
}
