// SPDX-License-Identifier: Apache-2.0

// Package slowlink finds the communicators of training jobs that move their data slower
// than before, or than communicators of the same kind. All ranks leave an operation
// together, and the last rank to enter waits for nobody. So the greatest bandwidth that
// a rank tells is the links' own, however slowly a rank computes. Pure.
package slowlink // import "github.com/gpu-collector/gpu-collector/internal/slowlink"

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// minGap is the loss of bandwidth worth an alert: operations take 15 % longer.
const minGap = 1 - 1/1.15

// loudReach bounds one tick's deviation for the sum of great losses, in units of the
// spread.
const loudReach = 8

// maxName bounds a text, in bytes.
const maxName = 253

// Errors of Add; nothing is kept of such a point.
var (
	ErrName         = errors.New("communicator without an id, or a name longer than 253 bytes")
	ErrTooManyRanks = errors.New("more communicators or ranks of them than the cluster's share")
)

// Kind is what communicators must have in common to be compared.
type Kind struct {
	// Operation, and Size of its messages: the lower bound of their power of two, in bytes.
	Operation string
	Size      int64
	// Ranks and Nodes of the communicator.
	Ranks, Nodes int64
}

func (k *Kind) String() string {
	return fmt.Sprintf("%s of %d B, %d ranks on %d nodes", k.Operation, k.Size, k.Ranks, k.Nodes)
}

// Point is what one rank told of one communicator since its last report.
type Point struct {
	// Job is empty where it is not known.
	Cluster, Job, Node string
	// ID of the communicator, and its Name, empty for none.
	ID, Name string
	Kind     Kind
	Rank     int64
	// Bandwidth is the greatest of the operations, in bytes per second.
	Bandwidth float64
}

// Link is who an event is about.
type Link struct {
	Job string
	Op  Kind
	// Communicators are the ids, at most 100, and Count how many are meant. Name is that
	// of the only one.
	Communicators []string
	Name          string
	Count         int
	// Before says that the comparison is with their own past, not with others.
	Before bool
	// Lost is the share of the job's wall time that the slowness takes, 0 if unknown.
	Lost float64
}

// Event is a verdict on communicators. Its Subject is SubjectCommunicator, its Nodes those
// of the communicators. Value and Median are in bytes per second.
type Event struct {
	straggler.Event
	Link
}

// Book keeps what the ranks told. It is not safe for concurrent use.
type Book struct {
	engine *straggler.Engine
	all    map[key]*communicator
	order  []*communicator           // by cluster and id
	slow   []*episode                // by their own past
	open   map[string]Link           // of the engine's episodes
	bytes  *fairshare.Ledger[string] // of ranks, by cluster as count is
	count  *fairshare.Ledger[string] // of communicators
	tick   time.Duration
	// continues says that the next tick tells what goes on since before a restart.
	continues bool
}

type key struct{ cluster, id string }

type communicator struct {
	key
	job, name string
	kind      Kind
	ranks     map[int64]rank
	fresh     bool
	value     float64 // of the tick, 0 for none
	past      past
	slow      *episode  // nil while it is as before
	resumed   time.Time // when it was restored, else zero
}

type rank struct {
	node             unique.Handle[string]
	kind             unique.Handle[Kind]
	bandwidth, share float64
	at               int64 // unix nanoseconds
	// interval is between its last two reports.
	interval time.Duration
}

// bytes are what a rank takes, with a name of its own for its node, and a kind of its own.
func (r *rank) bytes() int { return rankBytes + len(r.node.Value()) + len(r.kind.Value().Operation) }

// maxListed bounds the names in an event.
const maxListed = 100

// silence is how long a rank or kind is kept that tells nothing.
const silence = 5 * time.Minute

// communicatorBytes are what a communicator takes, kindBytes a kind of each job, rankBytes
// a rank without the name of its node. A test measures them.
const communicatorBytes, kindBytes, rankBytes = 2400, 4000, 160

// New returns an empty book. tick is the interval of Tick, bytes bound the memory: one half
// is for ranks, the other for communicators and kinds. A cluster has half of what the
// others leave.
func New(tick time.Duration, bytes int) *Book {
	communicators, kinds := max(1, bytes*2/5/communicatorBytes), max(1, bytes/10/kindBytes)
	c := straggler.DefaultConfig()
	for s := range c.Signals {
		c.Signals[s].Decides = false
	}
	c.Signals[nodesignal.Throughput] = nodesignal.Spec{Decides: true, Direction: nodesignal.Low, Relative: true, MinGap: minGap}
	c.Split.Interval = 0 // who is of one kind is known
	// A value is the best of many operations, so that one tick is no outlier: three are
	// enough, and nobody waits for others to fall.
	c.CUSUM.Loud.Reach = loudReach
	c.Incident.MinNodes, c.Incident.MinShare = communicators, 1
	c.TTL, c.Retention = silence, 2*silence
	c.Episodes.MaxListed = maxListed
	c.MaxNodes, c.MaxGroups = communicators, kinds
	return &Book{
		engine: straggler.New(c), all: make(map[key]*communicator), open: make(map[string]Link),
		bytes: fairshare.New[string](bytes/2, fairshare.Half), count: fairshare.New[string](communicators, fairshare.Half), tick: tick,
	}
}

// Add takes a point. Its texts are copied.
func (b *Book) Add(p *Point, now time.Time) error {
	if p.ID == "" || p.Cluster == "" {
		return ErrName
	}
	for _, s := range [...]string{p.Cluster, p.Job, p.Node, p.ID, p.Name, p.Kind.Operation} {
		if len(s) > maxName {
			return ErrName
		}
	}
	c := b.all[key{p.Cluster, p.ID}]
	var r rank
	known := false
	if c != nil {
		r, known = c.ranks[p.Rank]
	}
	if !known {
		r = rank{node: unique.Make(p.Node), kind: unique.Make(p.Kind), interval: b.tick}
		if b.bytes.Room(p.Cluster) < r.bytes() || c == nil && b.count.Room(p.Cluster) < 1 {
			return ErrTooManyRanks
		}
		if c == nil {
			c = b.begin(p)
		}
		b.bytes.Hold(c.cluster, r.bytes())
	}
	if p.Job != c.job && p.Job != "" {
		c.job = strings.Clone(p.Job)
	}
	if p.Node != r.node.Value() || p.Kind != r.kind.Value() {
		b.bytes.Give(c.cluster, r.bytes())
		r.node, r.kind = unique.Make(p.Node), unique.Make(p.Kind)
		b.bytes.Hold(c.cluster, r.bytes())
	}
	if at := now.UnixNano(); r.at != at {
		if r.at != 0 && at > r.at {
			r.interval = min(time.Duration(at-r.at), silence/2)
		}
		r.at = at
	}
	r.bandwidth = p.Bandwidth
	c.ranks[p.Rank], c.fresh = r, true
	return nil
}

// Spend takes the share of wall time that a rank spent in a communicator's operations.
func (b *Book) Spend(cluster, id string, rank int64, share float64) {
	if c := b.all[key{cluster, id}]; c != nil {
		if r, known := c.ranks[rank]; known {
			r.share = share
			c.ranks[rank] = r
		}
	}
}

func (b *Book) begin(p *Point) *communicator {
	c := &communicator{
		key: key{strings.Clone(p.Cluster), strings.Clone(p.ID)}, name: strings.Clone(p.Name),
		ranks: make(map[int64]rank),
	}
	b.count.Hold(c.cluster, 1)
	b.all[c.key] = c
	at, _ := slices.BinarySearchFunc(b.order, c.key, byKey)
	b.order = slices.Insert(b.order, at, c)
	return c
}

func byKey(c *communicator, k key) int {
	return cmp.Or(cmp.Compare(c.cluster, k.cluster), cmp.Compare(c.id, k.id))
}

// Drop forgets what a rank told of a communicator.
func (b *Book) Drop(cluster, id string, rank int64) {
	c := b.all[key{cluster, id}]
	if c == nil {
		return
	}
	if r, known := c.ranks[rank]; known {
		delete(c.ranks, rank)
		b.bytes.Give(cluster, r.bytes())
	}
}

// Communicators returns how many are known.
func (b *Book) Communicators() int { return len(b.all) }

// sweep forgets the ranks that are silent.
func (b *Book) sweep(now time.Time) {
	b.order = slices.DeleteFunc(b.order, func(c *communicator) bool {
		for n, r := range c.ranks {
			if now.UnixNano()-r.at > int64(silence) {
				delete(c.ranks, n)
				b.bytes.Give(c.cluster, r.bytes())
			}
		}
		over := len(c.ranks) == 0 && !c.awaited(now)
		if over {
			delete(b.all, c.key)
			b.count.Give(c.cluster, 1)
		}
		return over
	})
}

// judge takes the communicator's bandwidth: the greatest of the ranks that tell the kind
// of the first of them. A rank's word holds for one and a half of its own intervals.
func (c *communicator) judge(now time.Time) {
	c.value = 0
	if !c.fresh {
		return
	}
	c.fresh = false
	first := int64(-1)
	for n, r := range c.ranks {
		if r.holds(now) && (first < 0 || n < first) {
			first = n
		}
	}
	if first < 0 {
		return
	}
	kind := c.ranks[first].kind
	c.kind = kind.Value()
	for _, r := range c.ranks {
		if r.holds(now) && r.kind == kind {
			c.value = max(c.value, r.bandwidth)
		}
	}
}

func (r *rank) holds(now time.Time) bool { return now.UnixNano()-r.at <= int64(r.interval)*3/2 }

// share is the least of the ranks': who waits for nobody.
func (c *communicator) share() (least float64) {
	for _, r := range c.ranks {
		if r.share > 0 && (least == 0 || r.share < least) {
			least = r.share
		}
	}
	return least
}

// nodes lists those of the ranks.
func (c *communicator) nodes(into map[string]bool) {
	for _, r := range c.ranks {
		if name := r.node.Value(); name != "" {
			into[name] = true
		}
	}
}

// Tick compares, and returns what changed. now rises from call to call.
func (b *Book) Tick(now time.Time) (events []Event) {
	if b.continues {
		b.continues = false
		events = b.openSlow(straggler.EventContinues, "", now)
	}
	b.sweep(now)
	for _, c := range b.order {
		if c.judge(now); c.value <= 0 {
			continue
		}
		c.past.take(c.value, now)
		o := straggler.Observation{
			Cluster: c.cluster, Node: c.id, Peers: []string{c.job, c.kind.String()}, HasState: true, State: straggler.StateActive,
		}
		o.Values.Set(nodesignal.Throughput, c.value)
		_ = b.engine.Observe(&o, now) // its bounds are the ledger's, and Add has looked at the names
	}
	events = append(append(events, b.risen(now)...), b.fallen(now)...)
	report := b.engine.Tick(now)
	for i := range report.Events {
		if ev, tell := b.translate(&report.Events[i]); tell {
			events = append(events, ev)
		}
	}
	return events
}

// translate makes an event about communicators of one about nodes of the engine. Silence
// is no fault of a link.
func (b *Book) translate(e *straggler.Event) (Event, bool) {
	if e.Subject == straggler.SubjectMissing {
		return Event{}, false
	}
	out := Event{Event: *e}
	ids, count := e.Nodes, e.NodeCount
	if e.Subject == straggler.SubjectNode {
		ids, count = []string{e.Node}, 1
	}
	out.Subject, out.Group, out.Node, out.Peers, out.Rank = straggler.SubjectCommunicator, "", "", nil, 0
	if e.Kind == straggler.EventEnd || e.Kind == straggler.EventContinues {
		link, known := b.open[e.ID]
		if e.Kind == straggler.EventEnd {
			delete(b.open, e.ID)
		}
		out.Link, out.Nodes, out.NodeCount = link, nil, 0
		return out, known
	}
	for _, id := range ids {
		if c := b.all[key{out.Cluster, id}]; c != nil && c.slow != nil {
			return Event{}, false // that is told already
		}
	}
	out.Link = Link{Communicators: slices.Clone(ids), Count: count}
	b.describe(&out, ids)
	b.open[e.ID] = out.Link
	return out, true
}

// describe adds what the communicators of an event have in common.
func (b *Book) describe(out *Event, ids []string) {
	nodes := map[string]bool{}
	for _, id := range ids {
		c := b.all[key{out.Cluster, id}]
		if c == nil {
			continue
		}
		c.nodes(nodes)
		out.Job, out.Op = c.job, c.kind
		if len(ids) == 1 {
			out.Name = c.name
		}
		out.Lost = max(out.Lost, lost(c.share(), out.Gap))
	}
	out.Nodes, out.NodeCount = list(nodes)
}

// lost is the share of wall time that operations take longer than without the gap, which
// is of bandwidth: share is what they take with it.
func lost(share, gap float64) float64 { return min(share, 1) * max(gap, 0) }

// list returns the names in order, and how many there are.
func list(set map[string]bool) (names []string, n int) {
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxListed)], len(names)
}
