// SPDX-License-Identifier: Apache-2.0

// Package collective compares the ranks of jobs by what they told of their collective
// operations. In lockstep all ranks take the same time for a step. The rank that computes
// longest waits least, so its share of time in collectives is the lowest. Pure.
//
// ranks.go finds slow ranks by the engine of internal/detect/straggler, links.go communicators
// that became slow, jobs.go jobs that stand still.
package collective // import "github.com/gpu-collector/gpu-collector/internal/detect/collective"

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var (
	// ErrTooMany says that a cluster has no room for more ranks and communicators.
	ErrTooMany = errors.New("too many ranks and communicators")
	// ErrTooManyClasses says that a communicator has no room for another class of operations.
	ErrTooManyClasses = errors.New("too many classes of operations")
	// ErrTooManyRanks says that of a node no more ranks are compared.
	ErrTooManyRanks = errors.New("more ranks than a node can have")
)

// Rank is who tells something: a rank of a communicator, in a process of a node.
type Rank struct {
	Cluster, Node string
	// Job and Role are empty where they are not known.
	Job, Role string
	PID       int64
	// Subject is its GPU and its rank in the job, as far as they are known.
	nodesignal.Subject
	Communicator
}

// Communicator is one as a rank of it knows it. Its ID is the same for all of its ranks.
type Communicator struct {
	ID, Name           string
	Place, Size, Nodes int64 // Place is the rank's, from 0
}

// Label names a communicator to people.
func (c *Communicator) Label() string {
	if c.Name == "" {
		return c.ID
	}
	return c.Name + " (" + c.ID + ")"
}

// name is a rank's in the engine, whose nodes are ranks. Its communicator may change, so
// that its place there counts only where its number in the job is not known: one process
// may hold several such. nodeOf is the way back.
func (r *Rank) name() string {
	name := r.Node + "#" + strconv.FormatInt(r.PID, 10)
	switch rank, known := r.Rank.Get(); {
	case !known:
		name += "." + strconv.FormatInt(r.Place, 10)
	case r.PID == 0: // whoever tells step times need not tell its process
		name += "." + strconv.FormatInt(rank, 10)
	}
	return name
}

func nodeOf(name string) string { return name[:strings.LastIndexByte(name, '#')] }

// who is a rank as people know it: by its place in the communicator where its job's is
// not known.
func (r *Rank) who() nodesignal.Subject {
	s := r.Subject
	if s.Rank == 0 && r.ID != "" {
		s.Rank = nodesignal.OrdinalOf(r.Place)
	}
	return s
}

// own makes a copy of what belongs to a push.
func (r *Rank) own() Rank {
	c := *r
	for _, s := range [...]*string{&c.Cluster, &c.Node, &c.Job, &c.Role, &c.GPU, &c.ID, &c.Name} {
		*s = strings.Clone(*s)
	}
	return c
}

// Book keeps what the ranks of a fleet told. It is for one goroutine at a time.
type Book struct {
	cfg    straggler.Config
	engine *straggler.Engine // its nodes are ranks
	nodes  map[key]*node
	links  map[key]*link // by communicator
	jobs   map[key]*job  // that stand still
	left   map[key]int   // processes of jobs that have ended since one began
	// laggards are the ranks that RAS named, by cluster, communicator and place.
	laggards map[laggard]*lagging
	places   *fairshare.Ledger[string] // of ranks, members of communicators and laggards, by cluster
	// all are the communicators by their jobs, parts by who does the same in them; moved
	// says that their ranks are others.
	all, parts part
	moved      bool
	// Refused counts the ranks that the last tick did not compare, by ErrTooManyRanks or an
	// error of straggler.Engine.Observe.
	Refused map[error]int64

	ticked       time.Time
	restored     time.Time
	dt           float64 // seconds
	events, open []*episode.Episode
}

// key is a name within a cluster.
type key struct{ cluster, name string }

// node is what is kept of a node with ranks.
type node struct {
	told  time.Time
	gpus  int // and slices of such; 0 where it does not tell them
	ranks map[string]*rank
	word  straggler.RankVerdict // of this tick
	slow  int
	of    int // ranks that are compared
}

// New returns a book. cfg is that of the nodes' engine.
func New(cfg straggler.Config) *Book {
	cfg = cfg.OfRanks()
	return &Book{
		cfg: cfg, engine: straggler.New(cfg), nodes: make(map[key]*node), links: make(map[key]*link),
		jobs: make(map[key]*job), left: make(map[key]int), laggards: make(map[laggard]*lagging),
		places:  fairshare.New[string](placesPerNode*cfg.MaxNodes, fairshare.Half),
		Refused: make(map[error]int64),
	}
}

// placesPerNode is one for each of 8 ranks, and one for each of 3 communicators of a rank.
const placesPerNode = 32

// fresh reports whether what was told then still holds.
func (b *Book) fresh(told, now time.Time) bool { return now.Sub(told) <= b.cfg.TTL }

// Alive notes that a node reports, which has so many GPUs or slices: what it told before and did not
// repeat holds.
func (b *Book) Alive(cluster, name string, gpus int, now time.Time) {
	if n := b.nodes[key{cluster, name}]; n != nil {
		n.told, n.gpus = now, gpus
	}
}

// Tick compares the ranks and gives the nodes' engine what they say of each node. It returns
// the episodes of communicators and jobs that began, changed or ended, and those that are
// open. They are good until the next tick.
func (b *Book) Tick(to *straggler.Engine, now time.Time) (events, open []*episode.Episode) {
	b.dt = 0
	if !b.ticked.IsZero() {
		b.dt = min(now.Sub(b.ticked), b.cfg.TTL).Seconds()
	}
	b.ticked, b.events, b.open = now, b.events[:0], b.open[:0]
	clear(b.Refused)
	if b.moved {
		b.arrange()
		b.moved = false
	}
	b.compare(to, now)
	b.follow(now)
	b.stand(now)
	slices.SortStableFunc(b.events, func(x, y *episode.Episode) int {
		return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Group, y.Group), cmp.Compare(x.CommunicatorID, y.CommunicatorID))
	})
	return b.events, b.open
}

// record notes that the phase of an episode is to be told. Its Since names it.
func (b *Book) record(e *episode.Episode, phase episode.Phase) {
	e.Phase, e.Updated = phase, b.ticked
	e.ID = episode.ID(e.Subject, e.Cluster, e.Group, e.CommunicatorID, e.Since)
	b.events = append(b.events, e)
}
