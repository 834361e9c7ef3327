// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"bytes"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const (
	// stateForm is another when an older Restore would misread what the engine saves.
	stateForm = "straggler-1"
	// keepEach is how often it is written: a tick changes every node's averages.
	keepEach = 5 * time.Minute
)

// learnt is the engine's state: its revision is the count of ticks.
type learnt struct{ g *gateway }

func (l learnt) Revision() uint64 { return l.g.ticks.Load() }

func (l learnt) Snapshot() ([]byte, uint64, error) {
	var data bytes.Buffer
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	revision := l.Revision()
	err := l.g.engine.Save(&data)
	return data.Bytes(), revision, err
}

func (l learnt) Restore(data []byte, now time.Time) error {
	engine := straggler.New(l.g.cfg.bounded())
	if err := engine.Restore(bytes.NewReader(data), now); err != nil {
		return err
	}
	l.g.engine = engine
	l.g.logger.Info("what was learnt of the nodes before the restart is taken up", zap.Int("nodes", engine.Nodes()))
	return nil
}
