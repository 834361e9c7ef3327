// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"encoding/json"
	"fmt"
	"time"
)

// stateForm is another when the file's sections are others; each has a version of its own.
const stateForm = "nvml-1"

// book is something that a restart should not forget. It may be called from
// several goroutines.
type book interface {
	Revision() uint64
	Snapshot() (data []byte, revision uint64, err error)
	Restore(data []byte, now time.Time) error
}

// books are the sections of the state file.
type books struct{ health, gpus book }

type sections struct {
	Health json.RawMessage `json:"health"`
	GPUs   json.RawMessage `json:"gpus"`
}

func (b books) Revision() uint64 { return b.health.Revision() + b.gpus.Revision() }

func (b books) Snapshot() ([]byte, uint64, error) {
	health, ofHealth, err := b.health.Snapshot()
	if err != nil {
		return nil, 0, err
	}
	gpus, ofGPUs, err := b.gpus.Snapshot()
	if err != nil {
		return nil, 0, err
	}
	data, err := json.Marshal(sections{health, gpus})
	return data, ofHealth + ofGPUs, err
}

func (b books) Restore(data []byte, now time.Time) error {
	var s sections
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("its sections cannot be read: %w", err)
	}
	if err := b.gpus.Restore(s.GPUs, now); err != nil { // they may be another node's
		return err
	}
	return b.health.Restore(s.Health, now)
}
