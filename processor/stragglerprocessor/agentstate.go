// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

const (
	agentKind    = "straggler-agent"
	agentVersion = nodescore.SaveVersion
	agentKey     = "nodes"
	// agentEvery is between two writes; agentMaxAge is longer than a node takes to reboot. A
	// node that does other work by then is of another group, and begins anew.
	agentEvery  = time.Minute
	agentMaxAge = time.Hour
)

// agentKeeper keeps what an agent's nodes have learnt over a restart.
type agentKeeper struct {
	client  storage.Client // nil: nothing is kept
	log     *zap.Logger
	written time.Time
	failing bool                 // of the writer alone
	states  chan []byte          // what is to be written; a disk that hangs holds up no push
	done    chan struct{}        // closed when all is written
	kept    map[nodeKey]keptNode // of before, until the node reports
}

type keptNode struct {
	group string
	score *nodescore.Node
}

// open reads what was kept. Only a storage that the configuration should not name is an error.
func (a *agent) open(ctx context.Context, host component.Host, id component.ID) error {
	if a.cfg.State.StorageID == nil {
		return nil
	}
	ext, err := hostextension.Find[storage.Extension](host, "state::storage", "storage", *a.cfg.State.StorageID)
	if err != nil {
		return err
	}
	k := &a.keeper
	if k.client, err = ext.GetClient(ctx, component.KindProcessor, id, "agent"); err != nil {
		k.log.Warn("What nodes have learnt will not survive a restart: the storage cannot be opened.", zap.Error(err))
		return nil
	}
	k.states, k.done = make(chan []byte, 1), make(chan struct{})
	go func() {
		defer close(k.done)
		for state := range k.states {
			k.write(state)
		}
	}()
	b, err := k.client.Get(ctx, agentKey)
	if err == nil && b != nil {
		k.kept, err = a.readNodes(b, a.clock.Now())
	}
	if err == nil {
		return nil
	}
	k.log.Warn("What nodes had learnt before the restart is not used. It is set aside, under "+agentKey+setAside+".", zap.Error(err))
	if b != nil {
		if err := k.client.Batch(ctx, storage.SetOperation(agentKey+setAside, b), storage.DeleteOperation(agentKey)); err != nil {
			k.log.Warn("It could not be set aside.", zap.Error(err))
		}
	}
	return nil
}

var errManyNodes = errors.New("it has more nodes than `agent::max_nodes`")

func (a *agent) readNodes(b []byte, now time.Time) (map[nodeKey]keptNode, error) {
	c, err := packed.NewReader(b, agentKind, agentVersion)
	if err != nil {
		return nil, err
	}
	settings, at := "", time.Time{}
	c.Text(&settings, maxTextBytes*maxIDBytes)
	c.Time(&at)
	if c.Err() == nil && (settings != a.cfg.stateSettings() || now.Sub(at).Abs() > agentMaxAge) {
		return nil, nil // of other numbers, or of too long ago
	}
	n := c.Size(0)
	if n > a.cfg.Agent.MaxNodes {
		return nil, errManyNodes
	}
	kept := make(map[nodeKey]keptNode, n)
	for range n {
		var key nodeKey
		k := keptNode{score: nodescore.NewNode(&a.nodeCfg, a.plan)}
		c.Text(&key.cluster, wire.MaxNameLength)
		c.Text(&key.node, wire.MaxNameLength)
		c.Text(&k.group, maxTextBytes*maxIDBytes)
		k.score.Pack(c)
		if c.Err() != nil {
			break
		}
		kept[key] = k
	}
	return kept, c.End()
}

// takeKept gives a node that reports for the first time what it had learnt before.
func (a *agent) takeKept(n *agentNode, now time.Time) {
	k, ok := a.keeper.kept[n.nodeKey]
	if !ok {
		return
	}
	delete(a.keeper.kept, n.nodeKey)
	if k.group != n.group {
		return
	}
	n.score = k.score
	if peers, known := n.score.Kept(now); known {
		age := now.Sub(peers.At)
		a.logger.Info("The node judges itself by the gateway's last threshold until the gateway answers.",
			zap.String("cluster", n.cluster), zap.String("node", n.node), zap.Float64("threshold", round(peers.Threshold)),
			zap.Duration("age", age.Round(time.Second)), zap.Duration("at_most_for", (a.cfg.Agent.CachedTTL-age).Round(time.Second)))
	}
}

// packNodes is all that is known, with a.mu held.
func (a *agent) packNodes(now time.Time) []byte {
	c := packed.NewWriter(nil, agentKind, agentVersion)
	settings := a.cfg.stateSettings()
	c.Text(&settings, len(settings))
	c.Time(&now)
	var known []*agentNode
	for _, n := range a.nodes {
		if !n.score.Unknown() {
			known = append(known, n)
		}
	}
	c.Size(len(known))
	for _, n := range known {
		c.Text(&n.cluster, wire.MaxNameLength)
		c.Text(&n.node, wire.MaxNameLength)
		c.Text(&n.group, maxTextBytes*maxIDBytes)
		n.score.Pack(c)
	}
	return c.Seal()
}

// dueState returns what is to be written, now and then, with a.mu held.
func (a *agent) dueState(now time.Time) []byte {
	k := &a.keeper
	if k.client == nil || now.Sub(k.written) < agentEvery {
		return nil
	}
	k.written = now
	return a.packNodes(now)
}

// offer hands a state to the writer. A writer that still has the last state gets none.
func (k *agentKeeper) offer(state []byte) {
	if state == nil {
		return
	}
	select {
	case k.states <- state:
	default:
	}
}

func (k *agentKeeper) write(state []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	err := k.client.Set(ctx, agentKey, state)
	if err != nil && !k.failing {
		k.log.Warn("What nodes have learnt cannot be kept for a restart.", zap.Error(err))
	}
	k.failing = err != nil
}

// close writes the last state, and does not wait long for it. No push comes any more.
func (k *agentKeeper) close(ctx context.Context, state []byte) {
	wait, cancel := context.WithTimeout(ctx, lastWriteTimeout)
	defer cancel()
	select {
	case k.states <- state:
		close(k.states)
	case <-wait.Done():
	}
	select {
	case <-k.done:
		if err := k.client.Close(ctx); err != nil {
			k.log.Warn("The storage of what nodes have learnt was not closed.", zap.Error(err))
		}
	case <-wait.Done():
		k.log.Warn("What nodes have learnt last was not kept: the storage does not answer.")
	}
}
