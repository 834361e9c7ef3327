// SPDX-License-Identifier: Apache-2.0

// Package admission decides which of many concurrent pushes may run: a fixed number of
// permits and of bytes, and of both no more than a share for a cluster. It never queues:
// a push without a permit is told when to come back. It also says how many bytes a push
// takes, before it is decoded.
package admission // import "github.com/gpu-collector/gpu-collector/internal/admission"

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Reason why a push was refused.
type Reason string

// Reasons.
const (
	// ReasonPermits means that all permits were taken.
	ReasonPermits Reason = "permits"
	// ReasonShare means that the cluster held its share of the permits.
	ReasonShare Reason = "cluster_share"
	// ReasonBytes means that the cluster's share of the bytes was too small for the
	// push beside what others held.
	ReasonBytes Reason = "bytes"
)

// Settings of a Limiter.
type Settings struct {
	// Permits is the number of pushes that may run at once, at least 1.
	Permits int
	// Bytes that the pushes may hold together, at least 1.
	Bytes int64
	// ClusterShare in (0,1] is the part of the permits and of the bytes that a cluster
	// may hold. The whole leaves out those that other clusters hold.
	ClusterShare float64
	// RetryMin and RetryMax bound what a refusal asks the client to wait, in whole
	// seconds, at least 1.
	RetryMin, RetryMax time.Duration
}

// RefusedError says why a push was refused and when to try again.
type RefusedError struct {
	Reason  Reason
	Cluster string
	// RetryAfter is a whole number of seconds, at least 1: HTTP's Retry-After has no
	// fractions, and a client takes 0 for no advice at all.
	RetryAfter time.Duration
}

func (e *RefusedError) Error() string {
	why := "all permits are taken"
	switch e.Reason {
	case ReasonShare:
		why = "the cluster holds its share of the permits"
	case ReasonBytes:
		why = "the cluster holds its share of the memory for pushes"
	}
	return fmt.Sprintf("too many concurrent requests: %s; try again in %s", why, e.RetryAfter)
}

// TooLargeError says that no push may ever hold so many bytes: to try again is of no use.
type TooLargeError struct{ Bytes, Most int }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the message is too large: it takes %d bytes when decoded, must be at most %d, one cluster's share of `max_bytes`", e.Bytes, e.Most)
}

// Limiter hands out permits and bytes. fairshare says who gets how many.
type Limiter struct {
	Settings
	permits, bytes *fairshare.Ledger[string]
}

// New returns a limiter. The settings are those of a valid configuration.
func New(s Settings) *Limiter {
	return &Limiter{
		Settings: s,
		permits:  fairshare.New[string](s.Permits, s.ClusterShare),
		bytes:    fairshare.New[string](int(s.Bytes), s.ClusterShare),
	}
}

// InUse is how many permits and bytes are handed out.
func (l *Limiter) InUse() (permits int, bytes int64) {
	return l.permits.Taken(), int64(l.bytes.Taken())
}

// Permit is the right to run one push. It is not safe for concurrent use.
type Permit struct {
	limiter *Limiter
	cluster string
	bytes   int
}

// Acquire takes a permit for a cluster; those without a valid name are one cluster, whose
// name is empty. It never waits; the error is a *RefusedError.
func (l *Limiter) Acquire(cluster string) (*Permit, error) {
	if !wire.ValidName(cluster) {
		cluster = ""
	}
	if !l.permits.TakeAll(cluster, 1) {
		reason := ReasonShare
		if l.permits.Full() {
			reason = ReasonPermits
		}
		return nil, l.refuse(cluster, reason)
	}
	return &Permit{limiter: l, cluster: cluster}, nil
}

// Reserve takes bytes for the push, which go back with its permit. Over what its cluster
// may hold it takes none: the error is a *RefusedError, or a *TooLargeError where the
// cluster could never hold as many.
func (p *Permit) Reserve(n int) error {
	ledger := p.limiter.bytes
	if most := ledger.Most(); n > most-p.bytes {
		return &TooLargeError{Bytes: p.bytes + n, Most: most}
	}
	if !ledger.TakeAll(p.cluster, n) {
		return p.limiter.refuse(p.cluster, ReasonBytes)
	}
	p.bytes += n
	return nil
}

// Expect takes bytes for a message that is to come, at most what the cluster may hold, until
// arrived is called. Over what is free it takes none, as Reserve.
func (p *Permit) Expect(n int) (arrived func(), err error) {
	n = min(n, p.limiter.bytes.Most()-p.bytes)
	if err := p.Reserve(n); err != nil {
		return nil, err
	}
	return func() {
		p.bytes -= n
		p.limiter.bytes.Give(p.cluster, n)
	}, nil
}

// Release gives the permit and its bytes back.
func (p *Permit) Release() {
	p.limiter.permits.Give(p.cluster, 1)
	p.limiter.bytes.Give(p.cluster, p.bytes)
}

// refuse draws the seconds to wait, so that those who were refused together do not return
// together.
func (l *Limiter) refuse(cluster string, reason Reason) *RefusedError {
	lo, hi := int(l.RetryMin/time.Second), int(l.RetryMax/time.Second)
	return &RefusedError{Reason: reason, Cluster: cluster, RetryAfter: time.Duration(lo+rand.IntN(hi-lo+1)) * time.Second}
}
