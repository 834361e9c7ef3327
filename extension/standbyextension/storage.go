// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpu-collector/gpu-collector/internal/statecopy"
)

var errNoStorage = errors.New("the standby extension has no `storage`")

// clientKey is whose storage a client is of.
type clientKey struct{ kind, id, storage string }

// GetClient implements storage.Extension: what the client stores goes to the standbys too.
func (s *standby) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	key := clientKey{kind.String(), id.String(), name}
	s.mu.Lock()
	defer s.mu.Unlock()
	under, err := s.clientLocked(ctx, key, kind, id)
	if err != nil {
		return nil, err
	}
	return &client{s, key, under}, nil
}

// clientLocked is the one client of a storage: copies come through it, and then the
// component has it.
func (s *standby) clientLocked(ctx context.Context, key clientKey, kind component.Kind, id component.ID) (storage.Client, error) {
	if s.storage == nil {
		return nil, errNoStorage
	}
	if c := s.clients[key]; c != nil {
		return c, nil
	}
	c, err := s.storage.GetClient(ctx, kind, id, key.storage)
	if err == nil {
		s.clients[key] = c
	}
	return c, err
}

type client struct {
	s     *standby
	key   clientKey
	under storage.Client
}

// Get implements storage.Client.
func (c *client) Get(ctx context.Context, key string) ([]byte, error) {
	op := storage.GetOperation(key)
	err := c.Batch(ctx, op)
	return op.Value, err
}

// Set implements storage.Client.
func (c *client) Set(ctx context.Context, key string, value []byte) error {
	return c.Batch(ctx, storage.SetOperation(key, value))
}

// Delete implements storage.Client.
func (c *client) Delete(ctx context.Context, key string) error {
	return c.Batch(ctx, storage.DeleteOperation(key))
}

// Batch implements storage.Client. The standbys get also the values that are read: they
// lack the writes of an earlier life of this process.
func (c *client) Batch(ctx context.Context, ops ...*storage.Operation) error {
	if err := c.under.Batch(ctx, ops...); err != nil {
		return err
	}
	values := make([]statecopy.Value, 0, len(ops))
	for _, op := range ops {
		v := statecopy.Value{Key: statecopy.Key{Kind: c.key.kind, ID: c.key.id, Storage: c.key.storage, Key: op.Key}}
		if op.Type != storage.Delete {
			v.Bytes = slices.Clone(op.Value)
		}
		values = append(values, v)
	}
	c.s.mu.Lock()
	c.s.book.Put(values...)
	c.s.mu.Unlock()
	for _, p := range c.s.senders {
		p.wake()
	}
	return nil
}

// Close implements storage.Client. The file stays open: copies may come again.
func (*client) Close(context.Context) error { return nil }

// take stores what came from the active process, all of it or nothing of each storage.
func (s *standby) takeLocked(ctx context.Context, values []statecopy.Value) error {
	for len(values) > 0 {
		k := values[0].Key
		n := slices.IndexFunc(values, func(v statecopy.Value) bool {
			return v.Kind != k.Kind || v.ID != k.ID || v.Storage != k.Storage
		})
		if n < 0 {
			n = len(values)
		}
		var id component.ID
		if err := id.UnmarshalText([]byte(k.ID)); err != nil {
			return err
		}
		kind, known := kinds[k.Kind]
		if !known {
			return errors.New("a copy is of no component: kind " + k.Kind)
		}
		c, err := s.clientLocked(ctx, clientKey{k.Kind, k.ID, k.Storage}, kind, id)
		if err != nil {
			return err
		}
		ops := make([]*storage.Operation, n)
		for i, v := range values[:n] {
			if ops[i] = storage.SetOperation(v.Key.Key, v.Bytes); v.Bytes == nil {
				ops[i] = storage.DeleteOperation(v.Key.Key)
			}
		}
		if err := c.Batch(ctx, ops...); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}

var kinds = map[string]component.Kind{
	component.KindReceiver.String(): component.KindReceiver, component.KindProcessor.String(): component.KindProcessor,
	component.KindExporter.String(): component.KindExporter, component.KindExtension.String(): component.KindExtension,
	component.KindConnector.String(): component.KindConnector,
}
