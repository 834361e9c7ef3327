// SPDX-License-Identifier: Apache-2.0

// Package collective compares the ranks of jobs by what they report of their collective
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
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var (
	// ErrTooMany says that a node reports more ranks and communicators than are kept of one.
	ErrTooMany = errors.New("too many ranks and communicators")
	// ErrTooManyClasses says that a communicator has no room for another class of operations.
	ErrTooManyClasses = errors.New("too many classes of operations")
	// ErrTooManyRanks says that of a node no more ranks are compared.
	ErrTooManyRanks = errors.New("more ranks than a node can have")
)

// Rank is the origin of a report: a rank of a communicator, in a process of a node.
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
	Index, Size, Nodes int64 // Index is the rank's, from 0
}

// Label names a communicator to people.
func (c *Communicator) Label() string {
	if c.Name == "" {
		return c.ID
	}
	return c.Name + " (" + c.ID + ")"
}

// name is a rank's in the engine, whose nodes are ranks. Its communicator may change, so
// that its index there counts only where its rank in the job is not known: one process
// may hold several such ranks. nodeOf is the way back.
func (r *Rank) name() string {
	name := r.Node + "#" + strconv.FormatInt(r.PID, 10)
	switch rank, known := r.Rank.Get(); {
	case !known:
		name += "." + strconv.FormatInt(r.Index, 10)
	case r.PID == 0: // reports of step times need no process id
		name += "." + strconv.FormatInt(rank, 10)
	}
	return name
}

func nodeOf(name string) string { return name[:strings.LastIndexByte(name, '#')] }

// culprit names a rank in episodes: by its index in the communicator where its rank in the
// job is not known.
func (r *Rank) culprit() nodesignal.Subject {
	s := r.Subject
	if s.Rank == 0 && r.ID != "" {
		s.Rank = nodesignal.OrdinalOf(r.Index)
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

// Tracker keeps what the ranks of a fleet reported. It is for one goroutine at a time.
type Tracker struct {
	cfg    straggler.Config
	engine *straggler.Engine // its nodes are ranks
	nodes  map[key]*node
	links  map[key]*link // by communicator
	jobs   map[key]*job  // that stand still
	left   map[key]int   // processes of jobs that have ended since one began
	// laggards are the ranks that RAS named, by cluster, communicator and index.
	laggards map[laggard]*lagging
	// reported are the ranks, memberships and laggards that each node reports. The caller
	// takes reports only of nodes that the nodes' engine keeps.
	reported map[key]int
	// all are the communicators by job, parts by the part of a job. Both are computed anew at
	// the next tick where moved is set.
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
	reportedAt time.Time
	gpus       int // and slices of such; 0 where it does not report them
	ranks      map[string]*rank
	verdict    straggler.RankVerdict // of this tick
	slow       int
	of         int // ranks that are compared
}

// New returns a tracker. cfg is that of the nodes' engine.
func New(cfg straggler.Config) *Tracker {
	cfg = cfg.OfRanks()
	return &Tracker{
		cfg: cfg, engine: straggler.New(cfg), nodes: make(map[key]*node), links: make(map[key]*link),
		jobs: make(map[key]*job), left: make(map[key]int), laggards: make(map[laggard]*lagging),
		reported: make(map[key]int), Refused: make(map[error]int64),
	}
}

// maxReported of a node are 64 ranks with three communicators each.
const maxReported = 256

// take counts one more that a node reports, unless it reports too many.
func (b *Tracker) take(by key) bool {
	if b.reported[by] >= maxReported {
		return false
	}
	b.reported[by]++
	return true
}

func (b *Tracker) give(by key) {
	if b.reported[by]--; b.reported[by] <= 0 {
		delete(b.reported, by)
	}
}

// fresh reports whether a report of that time still holds.
func (b *Tracker) fresh(reportedAt, now time.Time) bool { return now.Sub(reportedAt) <= b.cfg.TTL }

// Alive records that a node with so many GPUs or slices reports: its earlier values hold.
func (b *Tracker) Alive(cluster, name string, gpus int, now time.Time) {
	if n := b.nodes[key{cluster, name}]; n != nil {
		n.reportedAt, n.gpus = now, gpus
	}
}

// Tick compares the ranks and gives the nodes' engine their verdict on each node. It returns
// the episodes of communicators and jobs that began, changed or ended, and those that are
// open. They are good until the next tick.
func (b *Tracker) Tick(to *straggler.Engine, now time.Time) (events, open []*episode.Episode) {
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

// record adds a phase of an episode to the tick's events. Since is part of the episode's ID.
func (b *Tracker) record(e *episode.Episode, phase episode.Phase) {
	e.Phase, e.Updated = phase, b.ticked
	e.ID = episode.ID(e.Subject, e.Cluster, e.Group, e.CommunicatorID, e.Since)
	b.events = append(b.events, e)
}
