// SPDX-License-Identifier: Apache-2.0

// Package admission decides which of many concurrent pushes may run: a fixed number of
// permits and of bytes, and of both no more than a share for a cluster while another one
// pushes. It never queues: a push without a permit gets the time of its next try. It also estimates
// how many bytes a push takes, before it is decoded.
package admission // import "github.com/gpu-collector/gpu-collector/internal/platform/admission"

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// RefusedError refuses a push that may be tried again. Its reason is `permits`, where all were
// taken, `cluster_share`, where the cluster held its share of them, or `bytes`.
type RefusedError struct{ Cluster, Reason, text string }

func (e *RefusedError) Error() string { return "too many concurrent requests: " + e.text }

// ErrTooLarge refuses a push that may never hold so many bytes: to try again is of no use.
var ErrTooLarge = errors.New("the message is too large")

// Limiter hands out permits and bytes. fairshare decides how many each owner gets.
type Limiter struct {
	permits, bytes *fairshare.Ledger[string]
}

// New returns a limiter of so many concurrent pushes, and of so many bytes that they hold
// together. Of both a cluster has no more than a share in (0,1] while another one pushes, and
// until a minute later. The share leaves out what other clusters hold.
func New(permits int, bytes int64, share float64) *Limiter {
	return &Limiter{
		permits: fairshare.NewLending[string](permits, share, time.Now),
		bytes:   fairshare.NewLending[string](int(bytes), share, time.Now),
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

// Acquire takes a permit for a cluster, or for all those without a name together. It never
// waits; the error is a *RefusedError.
func (l *Limiter) Acquire(cluster string) (*Permit, error) {
	// A cluster that pushes must find room: its first refusal would be too late.
	l.permits.Want(cluster)
	l.bytes.Want(cluster)
	if !l.permits.TakeAll(cluster, 1) {
		if l.permits.Full() {
			return nil, &RefusedError{cluster, "permits", "all permits are taken"}
		}
		return nil, &RefusedError{cluster, "cluster_share", "the cluster holds its share of the permits"}
	}
	return &Permit{limiter: l, cluster: cluster}, nil
}

// Reserve takes bytes for the push, which go back with its permit. Over what its cluster
// may hold it takes none: the error is a *RefusedError, or ErrTooLarge where the cluster
// could never hold as many.
func (p *Permit) Reserve(n int) error {
	ledger := p.limiter.bytes
	if most := ledger.Most(); n > most-p.bytes {
		return fmt.Errorf("%w: it takes %d bytes when decoded, must be at most %d, one cluster's share of `admission::max_bytes`",
			ErrTooLarge, p.bytes+n, most)
	}
	if !ledger.TakeAll(p.cluster, n) {
		return &RefusedError{p.cluster, "bytes", "the memory for pushes is taken, or the cluster's share of it"}
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
