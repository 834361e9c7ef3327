// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the history of GPU boards for years: where each was, what happened
// to it, and who did something about it. The board is the unit: a moved board keeps its
// history, and a new board in an old slot inherits nothing. Pure: it takes the time as an
// argument, and hands out what is to be stored.
package ledger // import "github.com/gpu-collector/gpu-collector/internal/ledger"

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

// Config bounds a Book.
type Config struct {
	// MaxBytes is the memory of all boards, as their records are counted.
	MaxBytes int64
	// ClusterShare in (0,1] is the part of it that the other clusters leave which one
	// cluster may have.
	ClusterShare float64
	// Retention is for how long a board is kept that nobody sees any more.
	Retention time.Duration
}

// DefaultConfig keeps some 30,000 quiet boards for five years.
func DefaultConfig() Config {
	return Config{MaxBytes: 32 << 20, ClusterShare: fairshare.Half, Retention: 5 * 365 * 24 * time.Hour}
}

const (
	// settle is how long a board must be unseen before another node's word that it has the
	// board is believed. A board does not move within minutes, and agents tell at least
	// every resync of `diff`, 2 min.
	settle = 10 * time.Minute
	// swap is how long a board must be unseen before another one in its slot replaces it: a
	// node is off meanwhile.
	swap = time.Minute
	// spare is after which time an unseen board without any entry makes room for others.
	spare = 24 * time.Hour
	// maxPerNode is how many boards may have a node as their last place. A node has up to
	// 16, and each slot changes a few times in years.
	maxPerNode = 256
	// saveSeen is how stale the stored last_seen may be.
	saveSeen = 6 * time.Hour
	// lookAgain is how often room is looked for in the name of one cluster.
	lookAgain = time.Minute
)

type key struct{ cluster, uuid string }

type nodeKey struct{ cluster, node string }

// Book keeps the boards. It is safe for concurrent use.
type Book struct {
	cfg Config

	mu     sync.Mutex
	boards map[key]*Board
	room   *fairshare.Ledger[string] // bytes, by cluster
	// nodes are the boards whose last place is the node.
	nodes map[nodeKey]map[string]*Board
	dirty map[key]struct{}
	tried map[string]time.Time // when a cluster last looked for room in vain
	drops [numDrops]int64
}

// Drop is why something was not taken.
type Drop uint8

// The reasons.
const (
	DropBoard   Drop = iota // no room for another board
	DropEntry               // no room for another entry
	DropUnknown             // of a board that nobody has seen
	DropName                // a name that is empty or too long
	numDrops
)

var dropNames = [numDrops]string{"ledger_boards", "ledger_entries", "ledger_unknown", "ledger_names"}

func (d Drop) String() string { return dropNames[d] }

// New returns an empty book.
func New(cfg Config) *Book {
	return &Book{
		cfg: cfg, boards: map[key]*Board{}, room: fairshare.New[string](int(cfg.MaxBytes), cfg.ClusterShare),
		nodes: map[nodeKey]map[string]*Board{}, dirty: map[key]struct{}{}, tried: map[string]time.Time{},
	}
}

// Sighting is what a node says of a GPU that it has now.
type Sighting struct {
	Cluster, Node, UUID string
	Slot                string // PCI address, empty when unknown
	// Index and Module are NVML's, -1 when unknown.
	Index, Module int
	Facts
}

func (s *Sighting) valid() bool {
	for _, name := range [...]string{s.Cluster, s.Node, s.UUID} {
		if name == "" || len(name) > maxName {
			return false
		}
	}
	return true
}

func (s *Sighting) cut() {
	for _, t := range [...]*string{&s.Slot, &s.Serial, &s.Model, &s.PartNumber, &s.VBIOS, &s.InfoROM, &s.Driver} {
		*t = cut(*t, maxName)
	}
}

// See takes a sighting.
func (b *Book) See(s *Sighting, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.valid() {
		b.drops[DropName]++
		return
	}
	k := key{s.Cluster, s.UUID}
	board := b.boards[k]
	if board == nil {
		if board = b.introduce(k, s, now); board == nil {
			return
		}
	}
	s.cut()
	p := board.last()
	switch {
	case p == nil:
		b.move(board, s, now)
	case p.Node == s.Node && (p.Slot == s.Slot || p.Slot == "" || s.Slot == ""):
		b.stay(board, p, s, now)
	case p.Node != s.Node && p.Open() && now.Sub(p.Seen) < settle:
		// Two nodes say that they have it: the first keeps it while it goes on saying so.
		if c := board.Claim; c == nil || c.Node != s.Node {
			board.Claim = &Claim{Node: s.Node, First: now}
			b.touch(k)
		}
		board.Claim.Last = later(board.Claim.Last, now)
		return
	default:
		b.move(board, s, now)
	}
	board.Seen = later(board.Seen, now)
	b.learn(board, s, now)
	if board.Seen.Sub(board.saved) >= saveSeen {
		b.touch(k)
	}
	b.account(board)
}

// introduce makes a record of a board that was never seen, if there is room.
func (b *Book) introduce(k key, s *Sighting, now time.Time) *Board {
	board := &Board{Cluster: k.cluster, UUID: k.uuid, First: now, Seen: now}
	need := board.size() + 256 + len(s.Node) // with its first place
	if len(b.nodes[nodeKey{s.Cluster, s.Node}]) >= maxPerNode || !b.take(k.cluster, need, now) {
		b.drops[DropBoard]++
		return nil
	}
	board.bytes = need
	b.boards[k] = board
	b.touch(k)
	return board
}

// take takes room for a cluster, that of its boards with nothing to tell if need be.
func (b *Book) take(cluster string, need int, now time.Time) bool {
	if b.room.TakeAll(cluster, need) {
		return true
	}
	if at, tried := b.tried[cluster]; tried && now.Sub(at) < lookAgain && !now.Before(at) {
		return false
	}
	var old []*Board
	for k, board := range b.boards {
		if k.cluster == cluster && len(board.Entries) == 0 && now.Sub(board.Seen) >= spare {
			old = append(old, board)
		}
	}
	slices.SortFunc(old, func(a, c *Board) int { return cmp.Or(a.Seen.Compare(c.Seen), cmp.Compare(a.UUID, c.UUID)) })
	for _, board := range old {
		b.forget(board)
		if b.room.TakeAll(cluster, need) {
			return true
		}
	}
	b.tried[cluster] = now
	return false
}

func (b *Book) forget(board *Board) {
	k := key{board.Cluster, board.UUID}
	if p := board.last(); p != nil {
		b.leave(board, p.Node)
	}
	b.room.Give(board.Cluster, board.bytes)
	delete(b.boards, k)
	b.touch(k)
}

func (b *Book) leave(board *Board, node string) {
	k := nodeKey{board.Cluster, node}
	delete(b.nodes[k], board.UUID)
	if len(b.nodes[k]) == 0 {
		delete(b.nodes, k)
	}
}

func (b *Book) enter(board *Board, node string) {
	k := nodeKey{board.Cluster, node}
	if b.nodes[k] == nil {
		b.nodes[k] = map[string]*Board{}
	}
	b.nodes[k][board.UUID] = board
}

// stay goes on with a place. One that had ended too early is open again.
func (b *Book) stay(board *Board, p *Place, s *Sighting, now time.Time) {
	k := key{board.Cluster, board.UUID}
	if !p.Open() {
		p.To, p.Replaced = time.Time{}, ""
		b.touch(k)
	}
	if p.Slot == "" && s.Slot != "" {
		p.Slot = s.Slot
		b.touch(k)
	}
	b.evict(s, board.UUID, now)
	if board.Claim != nil && now.Sub(board.Claim.Last) >= settle {
		board.Claim = nil
		b.touch(k)
	}
	index, module := changes(&p.Index, s.Index), changes(&p.Module, s.Module)
	if index || module {
		b.touch(k)
	}
	p.Seen = later(p.Seen, now)
}

// move begins a new place, and ends the one before where it was last seen.
func (b *Book) move(board *Board, s *Sighting, now time.Time) {
	if p := board.last(); p != nil {
		if p.Open() {
			p.To = p.Seen
		}
		b.leave(board, p.Node)
		now = later(now, p.To)
	}
	from := now
	if c := board.Claim; c != nil && c.Node == s.Node {
		from = c.First
		if p := board.last(); p != nil {
			from = later(from, p.To)
		}
	}
	board.Claim = nil
	b.evict(s, board.UUID, now)
	if len(board.Places) == maxPlaces {
		// The first place stays: it says where the board came from.
		board.Places = slices.Delete(board.Places, 1, 2)
		board.Left++
	}
	p := Place{Node: s.Node, Slot: s.Slot, From: from, Seen: now}
	changes(&p.Index, s.Index)
	changes(&p.Module, s.Module)
	board.Places = append(board.Places, p)
	b.enter(board, s.Node)
	b.touch(key{board.Cluster, board.UUID})
}

// changes takes a number that is known, and reports whether it is another one.
func changes(at **int, v int) bool {
	if v < 0 || *at != nil && **at == v {
		return false
	}
	known := v // only what is kept is on the heap
	*at = &known
	return true
}

// evict ends the stay of the board that was in the slot. Two that are both seen are no swap.
func (b *Book) evict(s *Sighting, by string, now time.Time) {
	if s.Slot == "" {
		return
	}
	for uuid, other := range b.nodes[nodeKey{s.Cluster, s.Node}] {
		if p := other.here(); uuid != by && p != nil && p.Node == s.Node && p.Slot == s.Slot && now.Sub(p.Seen) >= swap {
			p.To, p.Replaced = earlier(p.Seen, now), by
			b.touch(key{other.Cluster, uuid})
			b.account(other)
		}
	}
}

// learn takes the facts. Those that belong to the board itself are entries when they change.
func (b *Book) learn(board *Board, s *Sighting, now time.Time) {
	for _, f := range [...]struct {
		name     string
		old, now *string
		tells    bool
	}{
		{"serial number", &board.Serial, &s.Serial, true},
		{"model", &board.Model, &s.Model, true},
		{"board part number", &board.PartNumber, &s.PartNumber, true},
		{"VBIOS", &board.VBIOS, &s.VBIOS, true},
		{"InfoROM", &board.InfoROM, &s.InfoROM, true},
		{"driver", &board.Driver, &s.Driver, false},
	} {
		if *f.now == "" || *f.now == *f.old {
			continue
		}
		if *f.old != "" && f.tells {
			b.add(board, &Entry{At: now, Kind: KindFact, Node: s.Node, Text: f.name, From: *f.old, To: *f.now}, now)
		}
		*f.old = *f.now
		b.touch(key{board.Cluster, board.UUID})
	}
}

// Count takes the value of a counter. An increase of a telling counter is an entry. The
// first value is none: it came about at an unknown time.
func (b *Book) Count(cluster, node, uuid string, c Counter, v float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	board := b.boards[key{cluster, uuid}]
	if board == nil || int(c) >= len(counters) || v-v != 0 || v < 0 {
		return
	}
	if p := board.here(); p == nil || p.Node != node {
		return // another node's word
	}
	at := counters[c].at(&board.Counters)
	if *at != nil && **at == v {
		return
	}
	if counters[c].tells && *at != nil && v > **at {
		b.add(board, &Entry{At: now, Kind: KindCounter, Node: node, Text: counters[c].name, From: number(**at), To: number(v)}, now)
	}
	if counters[c].tells || *at == nil {
		b.touch(key{cluster, uuid})
	}
	*at = &v
	b.account(board)
}

func number(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (b *Book) touch(k key) { b.dirty[k] = struct{}{} }

// account settles what a board takes with its cluster's room. Small changes of a record
// that is there are taken even beyond the share: entries ask before.
func (b *Book) account(board *Board) {
	n := board.size()
	if n > board.bytes {
		b.room.Hold(board.Cluster, n-board.bytes)
	} else {
		b.room.Give(board.Cluster, board.bytes-n)
	}
	board.bytes = n
}

// Add adds an entry to a board, and reports whether it was taken. An entry of the past
// belongs to the board all the same.
func (b *Book) Add(cluster, uuid string, e *Entry, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	board := b.boards[key{cluster, uuid}]
	if board == nil {
		b.drops[DropUnknown]++
		return false
	}
	ok := b.add(board, e, now)
	b.account(board)
	return ok
}

// AddNode adds an entry to all boards that are in a node, and returns how many took it.
func (b *Book) AddNode(cluster, node string, e *Entry, now time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.At.IsZero() {
		e.At = now
	}
	for _, board := range b.nodes[nodeKey{cluster, node}] {
		p := board.here()
		if p == nil || e.At.Before(p.From) {
			continue // it was about the board before
		}
		each := *e
		each.WholeNode = true
		if b.add(board, &each, now) {
			n++
		}
		b.account(board)
	}
	return n
}

// AddEpisode takes a record of an episode of a node: for the board that it names, or for
// all boards in the node where it names none of them. Boards that have the episode already
// hear how it goes on.
func (b *Book) AddEpisode(cluster, node, uuid string, e *Entry, now time.Time) {
	b.mu.Lock()
	e.cut()
	named := false
	for id, board := range b.nodes[nodeKey{cluster, node}] {
		if id == uuid {
			named = true
			continue
		}
		for i := range board.Entries {
			if o := &board.Entries[i]; o.Kind == e.Kind && o.ID == e.ID {
				each := *e
				each.WholeNode = true
				o.update(&each)
				b.touch(key{cluster, id})
				b.account(board)
			}
		}
	}
	b.mu.Unlock()
	if named {
		b.Add(cluster, uuid, e, now)
	} else {
		b.AddNode(cluster, node, e, now)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
