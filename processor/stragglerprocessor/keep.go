// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const (
	// engineKey names what is kept; its number is that of the form.
	engineKey = "engine.1"
	// keepEach is how often it is written, keepTimeout how long the storage may take.
	keepEach, keepTimeout = 5 * time.Minute, 10 * time.Second
)

// restore takes up what the process before learnt of the nodes. Only a storage that the
// configuration should not name is an error: without what is in it nodes are still worth
// comparing.
func (g *gateway) restore(host component.Host, now time.Time) error {
	if g.cfg.StorageID == nil {
		return nil
	}
	extension, err := hostextension.Find[storage.Extension](host, "storage", "storage", *g.cfg.StorageID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	client, err := extension.GetClient(ctx, component.KindProcessor, g.id, "")
	if err != nil {
		g.logger.Warn("what is learnt of the nodes will not survive a restart: the storage cannot be opened", zap.Error(err))
		return nil
	}
	g.kept = client
	data, err := client.Get(ctx, engineKey)
	if err == nil && len(data) > 0 {
		if body := data[min(len(data), 4):]; !bytes.Equal(sum(body), data[:len(data)-len(body)]) {
			err = errors.New("it is damaged")
		} else {
			err = g.engine.Restore(bytes.NewReader(body), now)
		}
	}
	if err != nil {
		g.logger.Warn("what was learnt of the nodes before the restart is not used", zap.Error(err))
		g.engine = straggler.New(g.cfg.bounded())
		return nil
	}
	g.logger.Info("what was learnt of the nodes before the restart is taken up", zap.Int("nodes", g.engine.Nodes()))
	return nil
}

// keep writes what is learnt of the nodes. The ticker alone calls it, and once after it.
func (g *gateway) keep() {
	if g.kept == nil {
		return
	}
	var data bytes.Buffer
	g.mu.Lock()
	err := g.engine.Save(&data)
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
	defer cancel()
	if err == nil {
		err = g.kept.Set(ctx, engineKey, slices.Concat(sum(data.Bytes()), data.Bytes()))
	}
	if err != nil {
		g.logger.Warn("what is learnt of the nodes cannot be kept for a restart", zap.Error(err))
	}
}

// sum is the checksum in front of what is kept: gob takes a damaged number for a size.
func sum(data []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}
