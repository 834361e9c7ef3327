// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Config bounds a store.
type Config struct {
	// MaxNodes and MaxGPUsPerNode bound what is kept; MIG slices count as GPUs.
	// A new node takes the place of the node that has been missing longest.
	MaxNodes       int `mapstructure:"max_nodes"`
	MaxGPUsPerNode int `mapstructure:"max_gpus_per_node"`
	// MaxGroups bounds the peer groups, all clusters together.
	MaxGroups int `mapstructure:"max_groups"`
	// MaxEpisodes bounds the episodes kept, the open ones and those that are over
	// each by themselves. An episode of more than 1 KiB counts as several.
	MaxEpisodes int `mapstructure:"max_episodes"`
	// MaxBytes bounds the memory of nodes. A node that would grow beyond
	// it stays as it is.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ClusterShare in (0,1] is the part of the nodes, bytes, groups and episodes that the
	// other clusters leave to one; 0 means all. Subjects that never reported are one.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// MissingAfter is the silence after which a node counts as missing.
	MissingAfter time.Duration `mapstructure:"missing_after"`
	// NodeExpiry is the silence after which a node is forgotten.
	NodeExpiry time.Duration `mapstructure:"node_expiry"`
	// GPUExpiry is the silence after which a GPU of a node that goes on
	// reporting is forgotten: above twice the longest resync interval before it,
	// a shard's hour, in which a GPU that is lost or idle says nothing.
	GPUExpiry time.Duration `mapstructure:"gpu_expiry"`
	// EpisodeDoubt is how long the views contradict an open episode before it
	// counts as over. It is longer than the straggler processor's `flap_window`:
	// so long the processor holds the episode of a flapping node open.
	EpisodeDoubt time.Duration `mapstructure:"episode_doubt"`
}

// DefaultConfig returns bounds for a fleet of 100,000 nodes.
func DefaultConfig() Config {
	return Config{
		// A lone cluster holds half of the nodes and groups.
		MaxNodes: 200_000, MaxGPUsPerNode: 128, MaxGroups: 20_000, MaxEpisodes: 10_000,
		MaxBytes:     2 << 30,
		ClusterShare: fairshare.Half,
		MissingAfter: time.Minute, NodeExpiry: 24 * time.Hour, GPUExpiry: 150 * time.Minute,
		EpisodeDoubt: 70 * time.Minute,
	}
}

// Check reports every mistake.
func (c *Config) Check() error {
	const positive, lasting = "`%s` is %d, must be greater than 0", "`%s` is %s, must be greater than 0s"
	return errors.Join(
		mistake.If(c.MaxNodes <= 0, positive, "max_nodes", c.MaxNodes),
		mistake.If(c.MaxBytes <= 0, positive, "max_bytes", c.MaxBytes),
		mistake.If(c.MaxGPUsPerNode <= 0, positive, "max_gpus_per_node", c.MaxGPUsPerNode),
		mistake.If(c.MaxGroups <= 0, positive, "max_groups", c.MaxGroups),
		mistake.If(c.MaxEpisodes <= 0, positive, "max_episodes", c.MaxEpisodes),
		mistake.If(c.MissingAfter <= 0, lasting, "missing_after", c.MissingAfter),
		mistake.If(c.NodeExpiry <= 0, lasting, "node_expiry", c.NodeExpiry),
		mistake.If(c.GPUExpiry <= 0, lasting, "gpu_expiry", c.GPUExpiry),
		mistake.If(c.EpisodeDoubt <= 0, lasting, "episode_doubt", c.EpisodeDoubt),
		mistake.If(!(c.ClusterShare > 0 && c.ClusterShare <= 1), // also NaN
			"`cluster_share` is %v, must be in (0,1]", c.ClusterShare),
		mistake.If(c.MissingAfter > 0 && c.NodeExpiry > 0 && c.NodeExpiry < c.MissingAfter,
			"`node_expiry` is %s, must not be less than `missing_after`, %s", c.NodeExpiry, c.MissingAfter))
}

// shards is a power of two; locks of different nodes rarely meet.
const shards = 64

// MaxName bounds every name and text of a view, in bytes: a DNS name's length (RFC 1035).
const MaxName = 253

// Store keeps the latest views. Its methods may be called from any goroutine.
type Store struct {
	cfg      Config
	seed     maphash.Seed
	nodes    *fairshare.Ledger[string] // by cluster
	bytes    *fairshare.Ledger[string] // the same
	shards   [shards]shard
	index    index
	evictors evictors
	drops    [numDrops]atomic.Int64
	// short hears whose nodes or bytes were not taken.
	short func(cluster string, d Drop)

	groups   groups
	episodes episodes
}

type shard struct {
	mu    sync.RWMutex
	nodes map[Key]*entry
}

// entry is a node's place. Its view is replaced as a whole.
type entry struct {
	key  Key
	view atomic.Pointer[Node]
	seen atomic.Int64 // when the node last gave a sign of life, Unix milliseconds
	gone atomic.Bool  // it was forgotten

	// mu is held by one writer, for one resource; no reader takes it.
	mu     sync.Mutex
	gpusAt int64            // when the GPUs were last looked through, guarded by mu
	job    peergroup.Memory // of the view's job and role, guarded by mu
	size   int              // bytes that the cluster holds for it, guarded by mu
	born   int64            // when it was placed, Unix milliseconds

	fed fed // used by the feed
}

// retire marks a node as forgotten if it was not seen since, and nobody is
// writing to it.
func (e *entry) retire(seen int64) bool {
	if !e.mu.TryLock() {
		return false
	}
	defer e.mu.Unlock()
	if e.seen.Load() != seen {
		return false
	}
	e.gone.Store(true)
	return true
}

// New returns an empty store. The configuration is valid.
func New(cfg Config) *Store {
	s := &Store{
		cfg: cfg, seed: maphash.MakeSeed(), nodes: fairshare.New[string](cfg.MaxNodes, cfg.ClusterShare),
		bytes: fairshare.New[string](int(cfg.MaxBytes), cfg.ClusterShare), short: func(string, Drop) {},
	}
	s.index.sorted.Store(&rows{})
	for i := range s.shards {
		s.shards[i].nodes = map[Key]*entry{}
	}
	s.groups.all, s.groups.places = map[GroupKey]*Group{}, fairshare.New[string](cfg.MaxGroups, cfg.ClusterShare)
	s.episodes.init(cfg.MaxEpisodes, cfg.ClusterShare)
	return s
}

// OnShort has f called, by any goroutine, with the cluster of each node that was not
// taken or not updated for want of room. To be called before the first update.
func (s *Store) OnShort(f func(cluster string, d Drop)) { s.short = f }

// Nodes returns the number of nodes.
func (s *Store) Nodes() int { return s.nodes.Taken() }

// Drop is the reason why the store did not take something.
type Drop uint8

// The reasons.
const (
	DropNoNode         Drop = iota // the resource names no node, or none of at most MaxName bytes, or `.` or `..`
	DropMaxNodes                   // MaxNodes, or the cluster's share of them
	DropMaxBytes                   // MaxBytes, or the cluster's share of them
	DropEvicted                    // a missing node, to make room for a new node
	DropMaxGPUs                    // MaxGPUsPerNode
	DropMaxGroups                  // MaxGroups, or the cluster's share of them
	DropMaxEpisodes                // MaxEpisodes or the share of them, only of episodes that are open
	DropMaxDetails                 // more Xids, reasons or throttle reasons of a GPU than are kept
	DropText                       // a name or text of more than MaxName bytes
	DropForeignEpisode             // a record with the ID of an episode of another node, group or kind
	numDrops
)

var drops = [numDrops]string{"no_node", "max_nodes", "max_bytes", "evicted_node", "max_gpus_per_node", "max_groups", "max_episodes", "max_details", "text_too_long", "foreign_episode"}

func (d Drop) String() string { return drops[d] }

// Dropped calls f for each reason with how much was not taken so far.
func (s *Store) Dropped(f func(Drop, int64)) {
	for d := range numDrops {
		f(d, s.drops[d].Load())
	}
}

func (s *Store) drop(d Drop) { s.drops[d].Add(1) }

func (s *Store) shard(k Key) *shard {
	return &s.shards[maphash.String(s.seed, k.Node)%shards]
}

func (s *Store) find(k Key) *entry {
	sh := s.shard(k)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.nodes[k]
}

// place returns the node's entry, and makes it if there is none. It is nil where there is no room.
func (s *Store) place(k Key, now time.Time) *entry {
	if e := s.find(k); e != nil {
		return e
	}
	// No path of a URL names the nodes `.` and `..` (RFC 3986, section 5.2.4).
	if k.Node == "" || k.Node == "." || k.Node == ".." || len(k.Node) > MaxName || len(k.Cluster) > MaxName {
		s.drop(DropNoNode)
		return nil
	}
	if d, ok := s.reserve(k.Cluster, now); !ok {
		s.drop(d)
		s.short(k.Cluster, d)
		return nil
	}
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.nodes[k]; e != nil {
		s.nodes.Give(k.Cluster, 1)
		s.bytes.Give(k.Cluster, leastNode)
		return e
	}
	e := &entry{key: k, size: leastNode, born: now.UnixMilli()}
	n := &Node{Key: k, Born: unix(now.UnixMilli())}
	n.derive()
	e.view.Store(n)
	sh.nodes[k] = e
	s.index.add(e)
	return e
}

// pressed reports whether more than three quarters of the room is taken. Nodes that were
// heard of once and are missing are forgotten then: a flood of made-up names must not
// keep newcomers out for the whole NodeExpiry.
func (s *Store) pressed() bool {
	return 4*s.bytes.Taken() > 3*int(s.cfg.MaxBytes) || 4*s.nodes.Taken() > 3*s.cfg.MaxNodes
}

// Expire forgets nodes that have been silent for NodeExpiry, and returns how
// many it forgot. It ends the episodes that are over without a word.
func (s *Store) Expire(now time.Time) int {
	s.doubt(now)
	before, at := now.Add(-s.cfg.NodeExpiry).UnixMilli(), now.UnixMilli()
	pressed := s.pressed()
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for k, e := range sh.nodes {
			seen := e.seen.Load()
			if (seen < before || pressed && s.missing(seen, at) && !s.missing(e.born, seen)) && e.retire(seen) {
				delete(sh.nodes, k)
				s.nodes.Give(k.Cluster, 1)
				s.bytes.Give(k.Cluster, e.size)
				n++
			}
		}
		sh.mu.Unlock()
	}
	if n > 0 {
		s.index.stale()
	}
	s.groups.expire(before)
	return n
}
