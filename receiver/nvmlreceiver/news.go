// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"

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
}

func (n *news) report(r *nvml.Report) {
	n.node(r)
	if r.Unidentified != n.unidentified {
		n.unidentified = r.Unidentified
		if r.Unidentified > 0 {
			n.log.Warn("some GPUs have not said who they are and are not reported", zap.Int("gpus", r.Unidentified))
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
