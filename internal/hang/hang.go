// SPDX-License-Identifier: Apache-2.0

// Package hang finds training jobs that stand still: none of a job's collective
// operations ends any more, or its GPUs stay busy at low power. Pure.
package hang // import "github.com/gpu-collector/gpu-collector/internal/hang"

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

const (
	// beyond a job's longest pause so far, and never before leastStall, a job hangs.
	beyond     = 45 * time.Second
	leastStall = time.Minute
	// sampled is by how much reports make a pause longer than it is.
	sampled = 20 * time.Second
	// patience is how long a record waits for the name of the rank that holds the others:
	// NCCL's RAS service is asked twice, a minute apart.
	patience = 30 * time.Second
	// listen is how long ranks and nodes have to tell something after a restart, until
	// their silence counts.
	listen = 2 * time.Minute
	// sameTime is a difference that rounding makes.
	sameTime = 100 * time.Millisecond
	// forget is how long a rank, node or job is kept that tells nothing.
	forget = 10 * time.Minute
	// silent is after so many of its own intervals who tells nothing.
	silent = 3
	// lowPower is a share of the job's usual power: NCCL's waiting kernels draw a third
	// of what training does. It takes learnPower to know the usual power.
	lowPower    = 0.5
	powerWindow = time.Hour
	learnPower  = 10 * time.Minute
)

// Config is how jobs are watched.
type Config struct {
	// Enabled is false where nobody is to be told of jobs that stand still.
	Enabled bool `mapstructure:"enabled"`
	// A job that is watched for less than KnownAfter has not shown its pauses. Then it
	// takes FirstAfter.
	KnownAfter time.Duration `mapstructure:"known_after"`
	FirstAfter time.Duration `mapstructure:"first_after"`

	_ struct{}
}

// DefaultConfig has the time after which PyTorch ends a process group as FirstAfter.
func DefaultConfig() Config {
	return Config{Enabled: true, KnownAfter: time.Hour, FirstAfter: 10 * time.Minute}
}

// Validate returns the mistakes of the keys, which begin with prefix.
func (c *Config) Validate(prefix string) error {
	var errs []error
	if c.KnownAfter < 0 {
		errs = append(errs, fmt.Errorf("`%sknown_after` is %s, must not be negative", prefix, c.KnownAfter))
	}
	if c.FirstAfter < leastStall {
		errs = append(errs, fmt.Errorf("`%sfirst_after` is %s, must be at least %s", prefix, c.FirstAfter, leastStall))
	}
	return errors.Join(errs...)
}

// maxName bounds a text, in bytes; maxListed the names in an event.
const maxName, maxListed = 253, 100

// Errors of Progress, Power and Lag; nothing is kept then.
var (
	ErrName    = errors.New("hang: no cluster, or a name longer than 253 bytes")
	ErrTooMany = errors.New("hang: more ranks and nodes of jobs than the cluster's share")

	errDisabled = errors.New("hang: nobody watches")
)

// Of names a rank of a communicator.
type Of struct {
	Communicator string
	Rank         int64
}

// Laggard is a rank that the others of its communicator wait for.
type Laggard struct {
	Of
	// Missing says that its process does not answer; else it has begun fewer operations.
	Missing bool
	// Node and Subject are empty where no report of the rank is known. Host is its address.
	Node, Host string
	Subject    nodesignal.Subject
}

// bytes are what a laggard takes. Its node and subject are those of a rank.
func (l *Laggard) bytes() int { return lagBytes + len(l.Communicator) + len(l.Host) }

// Event tells that a job hangs, or no more. Its Subject is SubjectJob.
type Event struct {
	straggler.Event
	Job string
	// ByPower says that no operations are known, but the GPUs' power is.
	ByPower bool
	// Pause is the longest that the job made before.
	Pause    time.Duration
	Laggards []Laggard
}

// Book keeps what is known of jobs. It is not safe for concurrent use.
type Book struct {
	cfg   Config
	jobs  map[jobKey]*job
	order []*job
	bytes *fairshare.Ledger[string]
	// continues says that the next tick tells what goes on since before a restart.
	continues bool
}

type jobKey struct{ cluster, name string }

type job struct {
	jobKey
	cfg      *Config
	since    time.Time // it is watched
	ranks    map[Of]rank
	nodes    map[string]node
	lags     map[Of]Laggard
	pauses   map[nodesignal.Subject]time.Duration
	lagged   time.Time // when somebody told of a laggard last
	progress stall     // by operations
	power    stall     // by power
	usual    float64   // watts of a node, 0 for unknown
	learned  time.Duration
	ticked   time.Time

	id      string // of the hang that was told, empty for none
	byPower bool
	began   time.Time
	named   bool // who lags is told too
	held    int  // bytes of pauses

	resumed time.Time // when it was restored, else zero
	ranked  bool      // it told of its operations before
}

// stall is how long nothing moves, by one source.
type stall struct {
	moved time.Time     // last, zero for unknown
	pause time.Duration // the longest so far
	// broken says that nobody told anything for a while since: that is no pause.
	broken bool
}

type rank struct {
	node     unique.Handle[string]
	subject  nodesignal.Subject
	done     time.Time // when it finished something, by its own clock
	at       int64     // unix nanoseconds
	interval time.Duration
}

type node struct {
	Draw
	at       int64
	interval time.Duration
}

// rankBytes and its siblings are what they take at most, without their names.
const rankBytes, nodeBytes, jobBytes, pauseBytes, lagBytes = 320, 160, 1200, 128, 400

// New returns an empty book of so many bytes. A cluster has half of the bytes that the
// others leave.
func New(cfg Config, bytes int) *Book {
	return &Book{cfg: cfg, jobs: make(map[jobKey]*job), bytes: fairshare.New[string](bytes, fairshare.Half)}
}

// Progress takes when a rank's communicator finished an operation, by the clock of its
// node, at which the report was made at told.
func (b *Book) Progress(cluster, name, nodeName string, of Of, subject nodesignal.Subject, done, told, now time.Time) error {
	if cluster == "" || of.Communicator == "" || tooLong(cluster, name, nodeName, of.Communicator, subject.GPU) {
		return ErrName
	}
	j, err := b.job(cluster, name, now)
	if err != nil {
		return ifWatched(err)
	}
	r, known := j.ranks[of]
	if !known {
		size := rankBytes + len(nodeName) + len(of.Communicator) + len(subject.GPU)
		if b.bytes.Room(cluster) < size {
			return ErrTooMany
		}
		b.bytes.Hold(j.cluster, size)
		of.Communicator, subject.GPU = strings.Clone(of.Communicator), strings.Clone(subject.GPU)
		r = rank{node: unique.Make(nodeName), subject: subject, done: done}
	}
	// Reports take a while to come, and not each the same: only the node's clock tells
	// whether something was finished since the report before.
	moved := now.Add(-max(told.Sub(done), 0))
	// Nobody knows what a rank had finished before a restart: when it did so tells, as
	// well as its report does.
	since := !known && j.awaited(now) && moved.Sub(j.progress.moved) > sampled
	if done.Sub(r.done) > sameTime || j.progress.moved.IsZero() || since {
		j.progress.move(moved)
	}
	r.done = done
	r.at, r.interval = heard(r.at, r.interval, now)
	j.ranks[of] = r
	return nil
}

// Pause takes the longest time in which a rank finished nothing. Reports tell it only to
// their interval.
func (b *Book) Pause(cluster, name string, of nodesignal.Subject, longest time.Duration) error {
	j := b.jobs[jobKey{cluster, name}]
	if j == nil || tooLong(of.GPU) {
		return ErrName
	}
	if _, known := j.pauses[of]; !known {
		size := pauseBytes + len(of.GPU)
		if b.bytes.Room(cluster) < size {
			return ErrTooMany
		}
		b.bytes.Hold(j.cluster, size)
		j.held += size
		of.GPU = strings.Clone(of.GPU)
	}
	j.pauses[of] = longest
	return nil
}

// Draw is what a push may tell of a node: whether its GPUs are busy, and their watts.
type Draw struct {
	Busy, HasBusy bool
	Watts         float64
	HasWatts      bool
}

// Power takes what a push tells of a node. Values that the push lacks stay as they are.
func (b *Book) Power(cluster, name, nodeName string, d Draw, now time.Time) error {
	if cluster == "" || nodeName == "" || tooLong(cluster, name, nodeName) {
		return ErrName
	}
	j, err := b.job(cluster, name, now)
	if err != nil {
		return ifWatched(err)
	}
	n, known := j.nodes[nodeName]
	if !known {
		if b.bytes.Room(cluster) < nodeBytes+len(nodeName) {
			return ErrTooMany
		}
		nodeName = strings.Clone(nodeName)
		b.bytes.Hold(j.cluster, nodeBytes+len(nodeName))
	}
	if d.HasBusy {
		n.Busy, n.HasBusy = d.Busy, true
	}
	if d.HasWatts {
		n.Watts, n.HasWatts = d.Watts, true
	}
	n.at, n.interval = heard(n.at, n.interval, now)
	j.nodes[nodeName] = n
	return nil
}

// Lag takes that the others of a communicator wait for a rank. The job keeps the rank's
// node with it.
func (b *Book) Lag(cluster, name string, l Laggard, now time.Time) error {
	if !b.cfg.Enabled {
		return nil
	}
	j := b.jobs[jobKey{cluster, name}]
	if j == nil || tooLong(l.Communicator, l.Host) {
		return ErrName
	}
	was, known := j.lags[l.Of]
	if !known && len(j.lags) >= maxListed || b.bytes.Room(cluster) < l.bytes() {
		return ErrTooMany
	}
	if known {
		b.bytes.Give(j.cluster, was.bytes())
	}
	b.bytes.Hold(j.cluster, l.bytes())
	l.Communicator, l.Host = strings.Clone(l.Communicator), strings.Clone(l.Host)
	if r, known := j.ranks[l.Of]; known {
		l.Node, l.Subject = r.node.Value(), r.subject
	}
	j.lags[l.Of], j.lagged = l, now
	return nil
}

// Unlag forgets a laggard.
func (b *Book) Unlag(cluster, name string, of Of) {
	if j := b.jobs[jobKey{cluster, name}]; j != nil {
		if l, known := j.lags[of]; known {
			delete(j.lags, of)
			b.bytes.Give(j.cluster, l.bytes())
		}
	}
}

// unlag forgets all laggards of a job.
func (b *Book) unlag(j *job) {
	for _, l := range j.lags {
		b.bytes.Give(j.cluster, l.bytes())
	}
	j.lags = make(map[Of]Laggard)
}

// ifWatched is nil where nobody watches.
func ifWatched(err error) error {
	if errors.Is(err, errDisabled) {
		return nil
	}
	return err
}

func tooLong(names ...string) bool {
	return slices.ContainsFunc(names, func(s string) bool { return len(s) > maxName })
}

// heard returns when somebody told something, and how long that takes.
func heard(at int64, interval time.Duration, now time.Time) (int64, time.Duration) {
	n := now.UnixNano()
	switch {
	case at == 0:
		interval = leastStall / silent
	case n > at:
		// A node may push several times in an interval.
		interval = min(max(time.Duration(n-at), interval*9/10), forget/silent)
	}
	return n, interval
}

func (b *Book) job(cluster, name string, now time.Time) (*job, error) {
	if j := b.jobs[jobKey{cluster, name}]; j != nil {
		return j, nil
	}
	if !b.cfg.Enabled {
		return nil, errDisabled
	}
	size := jobBytes + len(cluster) + len(name)
	if b.bytes.Room(cluster) < size {
		return nil, ErrTooMany
	}
	j := &job{
		cfg:    &b.cfg,
		jobKey: jobKey{strings.Clone(cluster), strings.Clone(name)}, since: now,
		ranks: make(map[Of]rank), nodes: make(map[string]node), lags: make(map[Of]Laggard),
		pauses: make(map[nodesignal.Subject]time.Duration),
	}
	b.bytes.Hold(j.cluster, size)
	b.jobs[j.jobKey] = j
	at, _ := slices.BinarySearchFunc(b.order, j.jobKey, func(j *job, k jobKey) int {
		return cmp.Or(cmp.Compare(j.cluster, k.cluster), cmp.Compare(j.name, k.name))
	})
	b.order = slices.Insert(b.order, at, j)
	return j, nil
}

// move notes that something moved, and how long nothing had.
func (s *stall) move(at time.Time) {
	if !at.After(s.moved) {
		return
	}
	if !s.moved.IsZero() && !s.broken {
		s.pause = max(s.pause, at.Sub(s.moved))
	}
	s.moved, s.broken = at, false
}

// Has reports whether a job is known.
func (b *Book) Has(cluster, name string) bool { return b.jobs[jobKey{cluster, name}] != nil }

// Jobs returns how many are known.
func (b *Book) Jobs() int { return len(b.jobs) }

// Tick looks at all jobs, and returns what changed. now rises from call to call.
func (b *Book) Tick(now time.Time) (events []Event) {
	if !b.cfg.Enabled {
		return nil
	}
	if b.continues {
		b.continues = false
		events = b.Open(straggler.EventContinues, "", now)
	}
	b.order = slices.DeleteFunc(b.order, func(j *job) bool {
		ranks, nodes := j.sweep(b, now)
		if len(j.ranks)+len(j.nodes) == 0 && !j.awaited(now) {
			if j.id != "" {
				events = append(events, j.end(straggler.CauseIdle, now))
			}
			delete(b.jobs, j.jobKey)
			b.unlag(j)
			b.bytes.Give(j.cluster, j.held+jobBytes+len(j.cluster)+len(j.name))
			return true
		}
		j.draw(nodes, now)
		if ev, tell := j.judge(ranks, nodes, now); tell {
			events = append(events, ev)
			if ev.Kind == straggler.EventEnd {
				b.unlag(j)
			}
		}
		j.ticked = now
		return false
	})
	return events
}

// sweep forgets who is silent for long, and counts the ranks and nodes that are not
// silent at all.
func (j *job) sweep(b *Book, now time.Time) (ranks, nodes int) {
	n := now.UnixNano()
	for of, r := range j.ranks {
		switch since := time.Duration(n - r.at); {
		case since > forget:
			delete(j.ranks, of)
			b.bytes.Give(j.cluster, rankBytes+len(r.node.Value())+len(of.Communicator)+len(r.subject.GPU))
		case since <= silent*r.interval:
			ranks++
		}
	}
	for name, of := range j.nodes {
		switch since := time.Duration(n - of.at); {
		case since > forget:
			delete(j.nodes, name)
			b.bytes.Give(j.cluster, nodeBytes+len(name))
		case since <= silent*of.interval:
			nodes++
		}
	}
	return ranks, nodes
}

// draw follows the job's power. It moves while a node is idle, or draws what is usual.
func (j *job) draw(nodes int, now time.Time) {
	sum, busy := 0.0, 0
	for _, n := range j.nodes {
		if time.Duration(now.UnixNano()-n.at) > silent*n.interval {
			continue
		}
		if !n.HasBusy || !n.HasWatts {
			return // nobody knows of this one
		}
		if n.Busy {
			busy++
		}
		sum += n.Watts
	}
	if nodes == 0 || sum <= 0 {
		return
	}
	mean := sum / float64(nodes)
	low := j.usual > 0 && mean < lowPower*j.usual
	if busy == nodes && low && j.learned >= learnPower {
		return
	}
	j.power.move(now)
	if busy < nodes || low {
		return
	}
	took := leastStall / silent
	if !j.ticked.IsZero() {
		took = min(now.Sub(j.ticked), leastStall)
	}
	j.learned += took
	weight := max(float64(took)/float64(powerWindow), float64(took)/float64(j.learned))
	j.usual += min(weight, 1) * (mean - j.usual)
}

// pause is the job's longest pause. The ranks tell it exactly, but a rank that has begun
// anew has not seen all pauses.
func (j *job) pause(s *stall) time.Duration {
	told := time.Duration(0)
	for _, d := range j.pauses {
		if told == 0 || d < told {
			told = d
		}
	}
	if s != &j.progress || told == 0 || told < s.pause-sampled {
		return s.pause
	}
	return told
}

// limit is how long nothing may move.
func (j *job) limit(s *stall, beyond time.Duration, now time.Time) time.Duration {
	limit := max(leastStall, j.pause(s)+beyond)
	if now.Sub(j.since) < j.cfg.KnownAfter {
		limit = max(limit, j.cfg.FirstAfter)
	}
	return limit
}

// judge tells of a job that begins to hang, or moves again.
func (j *job) judge(ranks, nodes int, now time.Time) (Event, bool) {
	byPower := len(j.ranks) == 0 && (!j.ranked || !j.awaited(now))
	s, alive := &j.progress, ranks > 0
	if byPower {
		s, alive = &j.power, nodes > 0
	}
	if j.id != "" {
		if j.byPower != byPower || s.moved.After(j.began) {
			return j.end(straggler.CauseRecovered, now), true
		}
		if j.named || !j.lagged.After(j.began) {
			return Event{}, false
		}
		return j.tell(straggler.EventUpdate, s, now), true // RAS has answered since
	}
	stands := now.Sub(s.moved)
	s.broken = s.broken || !alive
	limit := j.limit(s, beyond, now)
	if !byPower && !j.lagged.After(s.moved) {
		limit = j.limit(s, beyond+patience, now)
	}
	if s.moved.IsZero() || !alive || stands < limit || !j.resumed.IsZero() && now.Sub(j.resumed) < listen {
		return Event{}, false
	}
	j.began, j.byPower = s.moved, byPower
	j.id, j.named = episodeID(j), false
	return j.tell(straggler.EventOnset, s, now), true
}

// stall is the source that its hang was told by.
func (j *job) stall() *stall {
	if j.byPower {
		return &j.power
	}
	return &j.progress
}

// tell makes the event of a job that stands still.
func (j *job) tell(kind straggler.EventKind, s *stall, now time.Time) Event {
	ev := Event{
		Event: straggler.Event{
			Kind: kind, Subject: straggler.SubjectJob, ID: j.id, Cluster: j.cluster,
			Severity: straggler.SeverityCritical, At: now, Since: j.began, Confidence: 1, Gap: 1,
		},
		Job: j.name, ByPower: j.byPower, Pause: j.pause(s),
	}
	if j.lagged.After(j.began) {
		j.named = true
		for _, l := range j.lags {
			ev.Laggards = append(ev.Laggards, l)
		}
		slices.SortFunc(ev.Laggards, func(a, b Laggard) int {
			return cmp.Or(cmp.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Rank, b.Rank))
		})
	}
	ev.Nodes, ev.NodeCount = j.names()
	return ev
}

// names lists the job's nodes.
func (j *job) names() (names []string, n int) {
	set := map[string]bool{}
	for _, r := range j.ranks {
		if name := r.node.Value(); name != "" {
			set[name] = true
		}
	}
	for name := range j.nodes {
		set[name] = true
	}
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxListed)], len(names)
}

func (j *job) end(cause string, now time.Time) Event {
	ev := Event{
		Event: straggler.Event{
			Kind: straggler.EventEnd, Subject: straggler.SubjectJob, ID: j.id, Cluster: j.cluster,
			At: now, Since: j.began, Confidence: 1, Cause: cause,
		},
		Job: j.name, ByPower: j.byPower,
	}
	j.id = ""
	return ev
}

func episodeID(j *job) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d\x00%s\x00%s\x00%d", straggler.SubjectJob, j.cluster, j.name, j.began.UnixMilli()) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}
