// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/statefile"
)

// stateForm is another when the file's sections are others; each has a version of its own.
const stateForm = "nvml-1"

// savedStates are the sections of the state file.
type savedStates struct{ health, gpus statefile.State }

type sections struct {
	Health json.RawMessage `json:"health"`
	GPUs   json.RawMessage `json:"gpus"`
}

func (b savedStates) Snapshot() ([]byte, error) {
	health, err := b.health.Snapshot()
	if err != nil {
		return nil, err
	}
	gpus, err := b.gpus.Snapshot()
	if err != nil {
		return nil, err
	}
	return json.Marshal(sections{health, gpus})
}

func (b savedStates) Restore(data []byte, now time.Time) error {
	var s sections
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("its sections cannot be read: %w", err)
	}
	if err := b.gpus.Restore(s.GPUs, now); err != nil { // they may be another node's
		return err
	}
	return b.health.Restore(s.Health, now)
}
