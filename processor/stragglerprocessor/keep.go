// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/collective"
	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
)

const (
	// stateForm is another when an older Restore would misread what the engine saves.
	stateForm = "straggler-8"
	// keepEach is how often it is written, since a tick changes every node's averages. It is
	// also written after each record of an episode, with the keeper's pauses: a crash between
	// two writes repeats the newest onset.
	keepEach = 5 * time.Minute
)

// Snapshot implements statefile.State: what was learnt, nothing before the first tick.
func (g *gateway) Snapshot() ([]byte, error) {
	if !g.ticked.Load() {
		return nil, nil
	}
	var data, nodes, ranks bytes.Buffer
	g.mu.Lock()
	ofNodes, ofRanks := g.engine.Save(), g.observer.ranks.Save()
	g.mu.Unlock() // pushes wait for the copy, and not for its encoding
	err := errors.Join(ofNodes.Write(&nodes), ofRanks.Write(&ranks))
	err = errors.Join(err, gob.NewEncoder(&data).Encode([][]byte{nodes.Bytes(), ranks.Bytes()}))
	return data.Bytes(), err
}

// Restore implements statefile.State.
func (g *gateway) Restore(data []byte, now time.Time) error {
	var parts [][]byte
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&parts); err != nil {
		return fmt.Errorf("its parts cannot be read: %w", err)
	}
	if len(parts) != 2 {
		return fmt.Errorf("it has %d parts, must be two: nodes and ranks", len(parts))
	}
	engine, ranks := straggler.New(g.cfg.bounded()), collective.New(g.cfg.bounded())
	if err := errors.Join(engine.Restore(bytes.NewReader(parts[0]), now), ranks.Restore(bytes.NewReader(parts[1]), now)); err != nil {
		return err
	}
	g.engine, g.observer.ranks = engine, ranks
	g.logger.Info("what was learnt of the nodes before the restart is taken up", zap.Int("nodes", engine.Nodes()))
	return nil
}
