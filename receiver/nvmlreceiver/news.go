// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"slices"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

// news logs what changed since the last report, and nothing that did not: a
// node without a driver, or with a broken GPU, would fill the log otherwise.
type news struct {
	log          *zap.Logger
	trouble      string
	unidentified int
	reasons      map[string]gpuhealth.Reason // by UUID, of the last report only
	rejected     map[rejection]struct{}
	onBus        []string
}

// rejection is a reading of a GPU that could not be true.
type rejection struct {
	uuid  string
	field gpuhealth.Field
}

// maxRejections bounds what is remembered of readings that cannot be true.
const maxRejections = 1024

// reject logs the first time that a GPU gives a field a value that cannot be
// true. How often it does is the counter's to say.
func (n *news) reject(s *gpuhealth.Sample, fields []gpuhealth.Field) {
	for _, field := range fields {
		r := rejection{uuid: s.UUID, field: field}
		if _, known := n.rejected[r]; known || len(n.rejected) >= maxRejections {
			continue
		}
		if n.rejected == nil {
			n.rejected = map[rejection]struct{}{}
		}
		n.rejected[r] = struct{}{}
		n.log.Warn("a reading that cannot be true is left out", zap.String("gpu", s.UUID), zap.Int("index", s.Index), zap.String("field", string(field)))
	}
}

// nameless logs the PCI addresses of GPUs that do not answer and that have no name.
func (n *news) nameless(addresses []string) {
	if slices.Equal(addresses, n.onBus) {
		return
	}
	n.onBus = addresses
	if len(addresses) > 0 {
		n.log.Warn("the PCI bus shows GPUs that do not answer", zap.Strings("pci_bus_ids", addresses))
	}
}

func (n *news) report(r *nvml.Report) {
	n.node(r)
	if r.Unidentified != n.unidentified {
		n.unidentified = r.Unidentified
		if r.Unidentified > 0 {
			n.log.Warn("some GPUs are not reported: their UUID is unknown, empty or another GPU's",
				zap.Int("gpus", r.Unidentified), zap.Int("invalid_uuids", r.InvalidUUIDs))
		}
	}
	reasons := make(map[string]gpuhealth.Reason, len(r.Samples))
	for i := range r.Samples {
		s := &r.Samples[i]
		reasons[s.UUID] = s.Reason
		before, seen := n.reasons[s.UUID]
		switch {
		case seen && before == s.Reason:
		case !s.Up():
			n.log.Warn("GPU does not answer", zap.String("gpu", s.UUID), zap.Int("index", s.Index), zap.String("reason", string(s.Reason)))
		case seen:
			n.log.Info("GPU answers again", zap.String("gpu", s.UUID), zap.Int("index", s.Index))
		}
	}
	n.reasons = reasons
}

func (n *news) node(r *nvml.Report) {
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
