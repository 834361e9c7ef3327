// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/admission"
)

// Bounds of what is remembered of credentials. The receiver checks each push all
// the same: who was known gets a permit of its cluster, and no more.
const (
	knownFor   = 10 * time.Minute
	maxClients = 1 << 14
)

// clients are those whom the authenticator knew of late: to check a password may
// take more than to decode a push.
type clients struct {
	headers []string // that tell one client from another, in lower case
	mu      sync.Mutex
	known   map[[sha256.Size]byte]known
}

// key is a hash of what the headers that tell clients apart say. None is false.
func (c *clients) key(headers metadata.MD) (key [sha256.Size]byte, some bool) {
	var room [512]byte
	all := room[:0]
	for _, name := range c.headers {
		values := headers[name]
		some = some || len(values) > 0
		// With lengths, so that no two calls run together to the same text.
		all = binary.AppendUvarint(all, uint64(len(values)))
		for _, v := range values {
			all = append(binary.AppendUvarint(all, uint64(len(v))), v...)
		}
	}
	return sha256.Sum256(all), some
}

type known struct {
	cluster string
	own     bool // or its claims count
	until   time.Time
}

func (k known) or(claim string) string {
	if k.own {
		return k.cluster
	}
	return claim
}

func (c *clients) get(key [sha256.Size]byte, now time.Time) (known, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.known[key]
	return k, ok && now.Before(k.until)
}

func (c *clients) put(key [sha256.Size]byte, k known) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= maxClients {
		for some := range c.known {
			delete(c.known, some)
			break
		}
	}
	c.known[key] = k
}

// enter takes a permit for a call whose headers have come. An unknown client holds a
// permit of the unknown clients' share while the authenticator is asked. The transport's
// reader asks, so that a connection asks once at a time.
func (e *admissionExtension) enter(ctx context.Context, headers metadata.MD, claim string) (*admission.Permit, error) {
	if e.authenticator == nil {
		return acquired(e.limiter.Acquire(claim))
	}
	key, shown := e.clients.key(headers)
	if shown {
		if k, ok := e.clients.get(key, time.Now()); ok {
			return acquired(e.limiter.Acquire(k.or(claim)))
		}
	}
	permit, err := acquired(e.limiter.Acquire(admission.Unknown))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.ReceiveTimeout)
	defer cancel()
	who, err := e.authenticator.Authenticate(ctx, headers)
	if err != nil {
		permit.Release()
		e.reject(ctx, "unauthenticated")
		if s, ok := status.FromError(err); ok {
			return nil, s.Err()
		}
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	k := known{until: time.Now().Add(knownFor)}
	k.cluster, k.own = e.authenticated(who)
	if shown {
		e.clients.put(key, k)
	}
	if err := permit.Move(k.or(claim)); err != nil {
		permit.Release()
		return nil, grpcError(err)
	}
	return permit, nil
}

func acquired(permit *admission.Permit, err error) (*admission.Permit, error) {
	if err != nil {
		return nil, grpcError(err)
	}
	return permit, nil
}
