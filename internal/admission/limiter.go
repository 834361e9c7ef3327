// SPDX-License-Identifier: Apache-2.0

// Package admission decides which of many concurrent requests may run: a fixed
// number of permits and of bytes. No cluster may take more than a share of them. It
// never queues: a request without a permit is told when to come back.
package admission // import "github.com/gpu-collector/gpu-collector/internal/admission"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Overflow is the name under which clusters beyond MaxClusters are counted
// together. A client that claims this name counts there too, so it names
// nothing else.
const Overflow = wire.Overflow

// Unknown is the name under which clients count that nobody has authenticated
// yet. They have one share together, whatever they claim.
const Unknown = "_UNKNOWN"

// Reason why a request was refused.
type Reason string

// Reasons.
const (
	// ReasonPermits means that all permits were taken.
	ReasonPermits Reason = "permits"
	// ReasonShare means that the cluster held its share.
	ReasonShare Reason = "cluster_share"
	// ReasonBytes means that the bytes left were too few for the request, or its
	// cluster's share of them.
	ReasonBytes Reason = "bytes"
)

// The reasons by their place in a bucket's counts.
var reasons = [...]Reason{ReasonPermits, ReasonShare, ReasonBytes}

const (
	granted = iota - 1
	noPermits
	noShare
	noBytes
)

// Settings of a Limiter.
type Settings struct {
	// Permits is the number of requests that may run at once, at least 1.
	Permits int
	// Bytes that the requests may hold together, at least 1.
	Bytes int64
	// ClusterShare in (0,1] is the part of the permits and of the bytes that a
	// cluster may hold. The whole leaves out those that other clusters hold.
	ClusterShare float64
	// UnknownShare in (0,1] is that of Unknown.
	UnknownShare float64
	// MaxClusters is the number of clusters that Usage names, at least 1. The
	// share of the others is their own all the same.
	MaxClusters int
	// RetryMin and RetryMax bound what a refusal asks the client to wait, in
	// whole seconds, at least 1.
	RetryMin, RetryMax time.Duration
	// IntN returns a number in [0,n); math/rand/v2 by default. It must be safe
	// for concurrent use.
	IntN func(n int) int
}

// Validate reports every setting that a Limiter cannot work with.
func (s *Settings) Validate() error {
	var errs []error
	if s.Permits < 1 {
		errs = append(errs, fmt.Errorf("permits are %d, must be at least 1", s.Permits))
	}
	if s.Bytes < 1 {
		errs = append(errs, fmt.Errorf("bytes are %d, must be at least 1", s.Bytes))
	}
	if !(s.ClusterShare > 0 && s.ClusterShare <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("cluster share is %v, must be in (0,1]", s.ClusterShare))
	}
	if !(s.UnknownShare > 0 && s.UnknownShare <= 1) {
		errs = append(errs, fmt.Errorf("unknown share is %v, must be in (0,1]", s.UnknownShare))
	}
	if s.MaxClusters < 1 {
		errs = append(errs, fmt.Errorf("clusters are at most %d, must be at least 1", s.MaxClusters))
	}
	if s.RetryMin < time.Second || s.RetryMax < s.RetryMin {
		errs = append(errs, fmt.Errorf("the wait is in [%s,%s], must be at least 1s and not end before it begins", s.RetryMin, s.RetryMax))
	}
	return errors.Join(errs...)
}

// RefusedError says why a request got no permit and when to try again.
type RefusedError struct {
	Reason Reason
	// RetryAfter is a whole number of seconds, at least 1: HTTP's Retry-After
	// has no fractions, and a client takes 0 for no advice at all.
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

// Limiter hands out permits. One mutex guards it all: a critical section is
// some ten nanoseconds, against the hundred microseconds that a request costs,
// and in exchange every bound below holds exactly.
//
// A cluster gets a permit only while it holds less than ClusterShare of the
// permits that the other clusters do not hold. Hence a lone cluster takes
// ⌈share·n⌉ at most, clusters that all want more settle at share·n/(1+(k-1)·share)
// each, and however greedy k of them are, about (1-share)^k·n stay free for the
// next, who is refused only when not one permit is left. That holds for any
// number of clusters, each has a bucket while it holds a permit: they are no
// more than MaxClusters and Permits together.
type Limiter struct {
	s Settings

	mu       sync.Mutex
	inUse    int
	bytes    int64
	clusters map[string]*bucket
	listed   int    // of the clusters
	idle     bucket // list head of the listed clusters that hold nothing, oldest first
	unnamed  bucket // requests without a cluster
	unknown  bucket
	overflow bucket
}

// bucket counts for one cluster. A listed one is in the idle list exactly while
// it holds no permit, any other is forgotten then.
type bucket struct {
	name       string
	listed     bool // Usage names it
	fixed      bool // it is no cluster
	held       int
	bytes      int64
	refused    [len(reasons)]int64
	prev, next *bucket
}

// New returns a limiter, or what is wrong with the settings.
func New(s Settings) (*Limiter, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.IntN == nil {
		s.IntN = rand.IntN
	}
	l := &Limiter{
		s: s, clusters: map[string]*bucket{},
		unnamed: bucket{listed: true, fixed: true}, unknown: bucket{name: Unknown, listed: true, fixed: true},
		overflow: bucket{name: Overflow, listed: true, fixed: true},
	}
	l.idle.prev, l.idle.next = &l.idle, &l.idle
	return l, nil
}

// Permit is the right to run one request. It is released once, however often
// Release is called.
type Permit struct {
	limiter *Limiter
	// Guarded by the limiter's mutex.
	bucket *bucket // nil once released
	bytes  int64
}

// Acquire takes a permit for a cluster, the empty name for an unknown one. It
// never waits; the error is a *RefusedError.
func (l *Limiter) Acquire(cluster string) (*Permit, error) {
	l.mu.Lock()
	b := l.bucket(cluster)
	refused := granted
	switch {
	case l.inUse >= l.s.Permits:
		refused = noPermits
	case b.held >= l.allowance(b, l.inUse):
		refused = noShare
	default:
		l.inUse++
		l.hold(b)
	}
	if refused != granted {
		l.refuse(b, refused)
	}
	l.mu.Unlock()
	if refused != granted {
		return nil, l.refusal(refused)
	}
	return &Permit{limiter: l, bucket: b}, nil
}

// Move counts the permit for another cluster, because the client turned out to
// belong to it. Over that cluster's share, or when the permit is released
// already, nothing moves; the error is a *RefusedError.
func (p *Permit) Move(cluster string) error {
	l := p.limiter
	l.mu.Lock()
	b := l.bucket(cluster)
	refused := granted
	switch {
	case p.bucket == nil:
		refused = noPermits
	case p.bucket == b:
	case b.held >= l.allowance(b, l.inUse-1):
		refused = noShare
	default:
		b.bytes += p.bytes
		p.bucket.bytes -= p.bytes
		l.drop(p.bucket)
		l.hold(b)
		p.bucket = b
	}
	if refused != granted {
		l.refuse(b, refused)
	}
	l.mu.Unlock()
	if refused != granted {
		return l.refusal(refused)
	}
	return nil
}

// Reserve takes bytes for the request, which go back with its permit. Over what
// its cluster may hold it takes none; the error is a *RefusedError.
func (p *Permit) Reserve(n int64) error {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	b := p.bucket
	if b == nil {
		return l.refusal(noBytes)
	}
	if b.bytes+n > int64(fairshare.Limit(l.s.ClusterShare, int(l.s.Bytes), int(l.bytes-b.bytes))) {
		l.refuse(b, noBytes)
		return l.refusal(noBytes)
	}
	p.bytes += n
	b.bytes += n
	l.bytes += n
	return nil
}

// MostBytes is what a request may reserve at most, when no other holds any.
func (l *Limiter) MostBytes() int64 {
	return int64(fairshare.Limit(l.s.ClusterShare, int(l.s.Bytes), 0))
}

// Release gives the permit back.
func (p *Permit) Release() {
	l := p.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.bucket == nil {
		return
	}
	l.inUse--
	l.bytes -= p.bytes
	p.bucket.bytes -= p.bytes
	l.drop(p.bucket)
	p.bucket, p.bytes = nil, 0
}

// allowance returns how many permits a cluster may hold while inUse are taken, its
// own included.
func (l *Limiter) allowance(b *bucket, inUse int) int {
	others := inUse - b.held
	if b == &l.unknown {
		return fairshare.Limit(l.s.UnknownShare, l.s.Permits, others)
	}
	return fairshare.Limit(l.s.ClusterShare, l.s.Permits, others)
}

// bucket finds the bucket of a cluster, which it may have to make. The caller
// then holds a permit for it or refuses it.
func (l *Limiter) bucket(cluster string) *bucket {
	switch cluster {
	case "":
		return &l.unnamed
	case Unknown:
		return &l.unknown
	case Overflow:
		return &l.overflow
	}
	b := l.clusters[cluster]
	if b == nil {
		// The name may be a piece of a larger text.
		b = &bucket{name: strings.Clone(cluster)}
		l.clusters[b.name] = b
	}
	if !b.listed {
		b.listed = l.makeRoom()
	}
	l.rest(b)
	return b
}

// makeRoom reports whether one more cluster can be listed. When there are
// enough, the cluster that is idle for longest makes room.
func (l *Limiter) makeRoom() bool {
	if l.listed < l.s.MaxClusters {
		l.listed++
		return true
	}
	oldest := l.idle.next
	if oldest == &l.idle {
		return false
	}
	oldest.unlink()
	delete(l.clusters, oldest.name)
	// Its refusals stay in the total.
	for i, n := range oldest.refused {
		l.overflow.refused[i] += n
	}
	return true
}

func (l *Limiter) hold(b *bucket) {
	b.unlink()
	b.held++
}

func (l *Limiter) drop(b *bucket) {
	b.held--
	l.settle(b)
}

// refuse counts a refusal under the name that the cluster has in Usage.
func (l *Limiter) refuse(b *bucket, reason int) {
	if b.listed {
		b.refused[reason]++
	} else {
		l.overflow.refused[reason]++
	}
	l.settle(b)
}

// settle forgets a cluster that holds nothing and is not listed.
func (l *Limiter) settle(b *bucket) {
	if b.held == 0 && !b.listed {
		delete(l.clusters, b.name)
		return
	}
	l.rest(b)
}

// rest makes a listed cluster that holds nothing the youngest of the idle ones.
func (l *Limiter) rest(b *bucket) {
	if b.held > 0 || !b.listed || b.fixed {
		return
	}
	b.unlink()
	b.prev, b.next = l.idle.prev, &l.idle
	b.prev.next, b.next.prev = b, b
}

func (b *bucket) unlink() {
	if b.next == nil {
		return
	}
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
}

// refusal draws the seconds to wait, so that those who were refused together
// do not return together.
func (l *Limiter) refusal(reason int) *RefusedError {
	lo, hi := int(l.s.RetryMin/time.Second), int(l.s.RetryMax/time.Second)
	wait := time.Duration(lo+l.s.IntN(hi-lo+1)) * time.Second
	return &RefusedError{Reason: reasons[reason], RetryAfter: wait}
}

// Usage is what a limiter has handed out.
type Usage struct {
	InUse, Limit           int
	BytesInUse, BytesLimit int64
	Clusters               []ClusterUsage // by name
}

// ClusterUsage is one cluster's part. The empty name stands for requests
// without a cluster, Overflow for the clusters beyond MaxClusters, and Unknown for
// clients of whom nobody knows their cluster yet.
type ClusterUsage struct {
	Cluster string
	InUse   int
	Refused map[Reason]int64 // since the cluster was first seen
}

// Usage returns a snapshot: at most MaxClusters clusters, and Unknown, Overflow and
// those without a name.
func (l *Limiter) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{
		InUse: l.inUse, Limit: l.s.Permits, BytesInUse: l.bytes, BytesLimit: l.s.Bytes,
		Clusters: make([]ClusterUsage, 0, len(l.clusters)+2),
	}
	others := l.overflow
	add := func(b *bucket) {
		c := ClusterUsage{Cluster: b.name, InUse: b.held, Refused: map[Reason]int64{}}
		for i, n := range b.refused {
			if n > 0 {
				c.Refused[reasons[i]] = n
			}
		}
		u.Clusters = append(u.Clusters, c)
	}
	for _, b := range l.clusters {
		if b.listed {
			add(b)
		} else {
			others.held += b.held
		}
	}
	for _, b := range []*bucket{&l.unnamed, &l.unknown, &others} {
		if b.held > 0 || b.refused != [len(reasons)]int64{} {
			add(b)
		}
	}
	slices.SortFunc(u.Clusters, func(a, b ClusterUsage) int { return strings.Compare(a.Cluster, b.Cluster) })
	return u
}
