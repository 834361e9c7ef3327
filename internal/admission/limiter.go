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

// Unfinished is the name under which messages count that have not all come: no cluster
// is charged for them yet.
const Unfinished = "_UNFINISHED"

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
	coming   bucket // bytes of messages, without permits
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
		coming:   bucket{name: Unfinished, listed: true, fixed: true},
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
	if p.reserve(n, 1) {
		return nil
	}
	if p.bucket != nil {
		l.refuse(p.bucket, noBytes)
	}
	return l.refusal(noBytes)
}

// ReserveAtEase takes bytes while its cluster holds no more than half of what it
// may: more than a request needs, where there are many.
func (p *Permit) ReserveAtEase(n int64) bool {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	return p.reserve(n, 2)
}

// reserve takes bytes within the part of what the cluster may hold.
func (p *Permit) reserve(n int64, part int) bool {
	l, b := p.limiter, p.bucket
	if b == nil {
		return false
	}
	if b.bytes+n > int64(fairshare.Limit(l.s.ClusterShare, int(l.s.Bytes), int(l.bytes-b.bytes))/part) {
		return false
	}
	p.bytes += n
	b.bytes += n
	l.bytes += n
	return true
}

// Coming is the part of the bytes for messages that have not all come. They may hold half
// of all bytes, and no more than requests leave. It is an unfinished.Budget.
func (l *Limiter) Coming() Coming { return Coming{l} }

// Coming takes bytes without a permit.
type Coming struct{ l *Limiter }

// Take takes bytes, or says that too few are left.
func (c Coming) Take(n int64) bool {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.coming.bytes+n > c.Most() || l.bytes+n > l.s.Bytes {
		return false
	}
	l.add(n)
	return true
}

// Most is what messages may hold that have not all come.
func (c Coming) Most() int64 { return max(c.l.s.Bytes/2, 1) }

// Rest takes bytes of a message that is there, beyond what such messages may hold. It takes
// no more than are left, and returns how many: requests then find none.
func (c Coming) Rest(n int64) int64 {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, max(l.s.Bytes-l.bytes, 0))
	l.add(n)
	return n
}

// Give gives bytes back.
func (c Coming) Give(n int64) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.add(-n)
}

// Refused counts a refusal for want of bytes.
func (c Coming) Refused() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.refuse(&c.l.coming, noBytes)
}

func (l *Limiter) add(n int64) {
	l.coming.bytes += n
	l.bytes += n
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
	case Overflow, Unfinished:
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
// without a cluster, Overflow for the clusters beyond MaxClusters, Unknown for clients
// whose cluster is not known yet, and Unfinished for messages that have not all come.
type ClusterUsage struct {
	Cluster string
	InUse   int
	Refused map[Reason]int64 // since the cluster was first seen
}

// Usage returns a snapshot: at most MaxClusters clusters, and Unknown, Overflow,
// Unfinished and those without a name.
func (l *Limiter) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := Usage{
		InUse: l.inUse, Limit: l.s.Permits, BytesInUse: l.bytes, BytesLimit: l.s.Bytes,
		Clusters: make([]ClusterUsage, 0, len(l.clusters)+4),
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
	for _, b := range []*bucket{&l.unnamed, &l.unknown, &others, &l.coming} {
		if b.held > 0 || b.refused != [len(reasons)]int64{} {
			add(b)
		}
	}
	slices.SortFunc(u.Clusters, func(a, b ClusterUsage) int { return strings.Compare(a.Cluster, b.Cluster) })
	return u
}
