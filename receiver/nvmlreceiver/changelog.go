// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// changeLog logs what changed since the last report, and nothing that did not: a
// node without a driver, or with a broken GPU, would fill the log otherwise.
type changeLog struct {
	log      *zap.Logger
	trouble  string
	states   map[string]string // why a GPU does not answer, by UUID, of the last report only
	unnamed  map[int]string    // the same of GPUs without a name, by index
	why      map[string]string // NVML's error, by UUID
	rejected map[rejection]struct{}
	onBus    []string
	before   record.Census   // of the last report
	awaited  map[string]bool // GPUs that had not answered yet
}

// rejection is a reading of a GPU that could not be true.
type rejection struct {
	uuid  string
	field gpuhealth.Field
}

// maxRejections bounds what is remembered of readings that cannot be true.
const maxRejections = 1024

// reject logs the first time that a GPU gives a field a value that cannot be
// true. A counter has how often it does.
func (n *changeLog) reject(s *gpuhealth.Sample, fields []gpuhealth.Field) {
	for _, field := range fields {
		r := rejection{uuid: s.UUID, field: field}
		if _, known := n.rejected[r]; known || len(n.rejected) >= maxRejections {
			continue
		}
		n.rejected[r] = struct{}{}
		n.log.Warn("a reading that cannot be true is left out", zap.String("gpu", s.UUID), zap.Int("index", s.Index), zap.String("field", string(field)))
	}
}

// nameless logs the PCI addresses of GPUs that do not answer and that have no name.
func (n *changeLog) nameless(addresses []string) {
	if slices.Equal(addresses, n.onBus) {
		return
	}
	n.onBus = addresses
	if len(addresses) > 0 {
		n.log.Warn("the PCI bus shows GPUs that do not answer", zap.Strings("pci_bus_ids", addresses))
	}
}

// report logs the GPUs that do not answer any more, do again, or do for the first time,
// after that long since the first contact.
func (n *changeLog) report(r *nvml.Report, after time.Duration) {
	n.node(r)
	n.why = make(map[string]string, len(r.NoReadings))
	for i := range r.NoReadings {
		n.why[r.NoReadings[i].UUID] = r.NoReadings[i].Why
	}
	states := make(map[string]string, len(r.Samples))
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.Parent != "" {
			continue
		}
		state := ""
		if !s.Up() {
			state = string(s.Reason) + " " + n.why[s.UUID]
		}
		states[s.UUID] = state
		before, seen := n.states[s.UUID]
		at := []zap.Field{zap.String("gpu", s.UUID), zap.Int("index", s.Index), zap.String("pci_bus_id", s.PCIBusID)}
		switch {
		case seen && before == state:
		case !s.Up():
			n.log.Warn("GPU does not answer", append(at, zap.String("reason", string(s.Reason)), zap.String("error", n.why[s.UUID]))...)
		case seen:
			n.log.Info("GPU answers again", at...)
		case n.before.Pending+n.before.Lost > 0:
			n.log.Info("GPU answers for the first time", append(at, zap.Duration("after", after))...)
		}
	}
	n.states = states
}

// missing logs the GPUs that have not answered since the start, as far as they are known,
// and those without a name that count as lost.
func (n *changeLog) missing(c record.Census, r *nvml.Report, known *roster.Roster, after time.Duration) {
	before := n.before
	n.before = c
	var names []string
	for _, id := range known.Pending() {
		names = append(names, nameOf(id.UUID, id.Index, id.PCIBusID, n.why[id.UUID]))
	}
	addresses := known.Nameless()
	unnamed := map[int]string{}
	for i := range r.NoReadings {
		s := &r.NoReadings[i]
		switch {
		case s.UUID != "":
		case c.Pending > 0 && !s.Reported:
			names = append(names, nameOf("", s.Index, s.PCIBusID, s.Why))
		default:
			at := s.PCIBusID
			if at == "" && len(r.NoReadings) == 1 && len(addresses) == 1 {
				at = addresses[0] // there is no other
			}
			if unnamed[s.Index] = string(s.Reason) + " " + s.Why; unnamed[s.Index] != n.unnamed[s.Index] {
				n.log.Warn("GPU is not reported, as NVML does not tell its UUID", zap.Int("index", s.Index), zap.String("pci_bus_id", at),
					zap.String("reason", string(s.Reason)), zap.String("error", s.Why))
			}
		}
	}
	if r.Down == "" {
		n.unnamed = unnamed
	}
	switch {
	case c.Pending > 0:
		n.pending(c.Pending, append(names, addresses...), before.Pending == 0)
	case c.Lost == 0:
	case before.Pending > 0 && c.Lost > before.Lost:
		n.log.Warn("GPUs that have not answered count as lost", zap.Int("gpus", c.Lost-before.Lost), zap.Duration("after", after))
		fallthrough
	default:
		n.nameless(addresses)
	}
}

// nameOf is what is known of a GPU, and NVML's error.
func nameOf(uuid string, index int, address, why string) string {
	name := strings.Join(strings.Fields(fmt.Sprintf("%s index %d %s", uuid, index, address)), " ")
	if why != "" {
		name += ": " + why
	}
	return name
}

// pending logs the GPUs that have not answered yet, when there is one more of them.
func (n *changeLog) pending(gpus int, names []string, changed bool) {
	for _, name := range names {
		changed = changed || !n.awaited[name]
		n.awaited[name] = true
	}
	if changed {
		n.log.Info("GPUs have not answered yet", zap.Int("gpus", gpus), zap.Strings("known", names))
	}
}

func (n *changeLog) node(r *nvml.Report) {
	trouble := ""
	if r.Err != nil {
		trouble = r.Err.Error()
	}
	if trouble == n.trouble {
		return
	}
	n.trouble = trouble
	switch {
	case r.Err == nil:
		n.log.Info("NVML answers", zap.Uint64("generation", r.Generation), zap.Int("gpus", len(r.Samples)))
	case errors.Is(r.Err, nvml.ErrNotBuilt), errors.Is(r.Err, nvml.ErrOtherLibrary):
		n.log.Warn("no GPU metrics will be emitted", zap.Error(r.Err))
	case errors.Is(r.Err, nvml.ErrLibraryNotFound):
		n.log.Warn("no GPU metrics until the NVML library is there; see library_path", zap.Error(r.Err))
	default:
		n.log.Warn("NVML is in trouble", zap.Error(r.Err))
	}
}
