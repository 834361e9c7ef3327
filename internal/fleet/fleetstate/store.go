// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/peergroup"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Config bounds a store.
type Config struct {
	// MaxGPUsPerNode bounds the GPUs of a node; MIG slices count as such.
	MaxGPUsPerNode int `mapstructure:"max_gpus_per_node"`
	// MaxEpisodes bounds the episodes kept, the open ones and those that are over
	// each by themselves. An episode of more than 1 KiB counts as several.
	MaxEpisodes int `mapstructure:"max_episodes"`
	// MaxBytes bounds the memory of nodes and peer groups. A node that would grow beyond
	// it stays as it is.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ClusterShare in (0,1] is the part of the episodes, and of the last quarter of the bytes,
	// that the other clusters leave to one; 0 means all. Subjects that never reported are one
	// cluster.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// MissingAfter is the time without a report after which a node counts as missing.
	MissingAfter time.Duration `mapstructure:"missing_after"`
	// NodeExpiry is the time without a report after which a node is forgotten. While three
	// quarters of MaxBytes are taken, a node that is missing for longer than it was there goes.
	NodeExpiry time.Duration `mapstructure:"node_expiry"`
	// GPUExpiry is the time without a point after which a GPU of a reporting node is forgotten.
	// It is above twice the longest resync interval before it, a shard's hour: in between, a
	// lost or idle GPU has no changes.
	GPUExpiry time.Duration `mapstructure:"gpu_expiry"`
	// EpisodeDoubt is how long the views contradict an open episode before it counts as over.
	// It is longer than the straggler processor's `flap_window`: for that time the processor
	// holds the episode of a flapping node open.
	EpisodeDoubt time.Duration `mapstructure:"episode_doubt"`
}

// DefaultConfig returns bounds for a fleet of 100,000 nodes.
func DefaultConfig() Config {
	return Config{
		MaxGPUsPerNode: 128, MaxEpisodes: 10_000, MaxBytes: 2 << 30,
		ClusterShare: fairshare.Half,
		MissingAfter: time.Minute, NodeExpiry: 24 * time.Hour, GPUExpiry: 150 * time.Minute,
		EpisodeDoubt: 70 * time.Minute,
	}
}

// Check reports every mistake.
func (c *Config) Check() error {
	const positive, lasting = "`%s` is %d, must be greater than 0", "`%s` is %s, must be greater than 0s"
	return errors.Join(
		mistake.If(c.MaxBytes <= 0, positive, "max_bytes", c.MaxBytes),
		mistake.If(c.MaxGPUsPerNode <= 0, positive, "max_gpus_per_node", c.MaxGPUsPerNode),
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

// MaxName bounds every name and text of a view, in bytes: a DNS name's length (RFC 1035).
const MaxName = 253

// Store keeps the latest views. Its methods may be called from any goroutine.
type Store struct {
	cfg   Config
	bytes *fairshare.Ledger[string] // of nodes and groups, by cluster
	mu    sync.RWMutex
	nodes map[Key]*entry // guarded by mu
	index index
	drops [numDrops]atomic.Int64
	// short is called with a cluster whose share is used up.
	short func(cluster string)

	groups   groups
	episodes episodes
}

// entry is a node's slot. Its view is replaced as a whole.
type entry struct {
	key  Key
	view atomic.Pointer[Node]
	seen atomic.Int64 // when the node last gave a sign of life, Unix milliseconds
	gone atomic.Bool  // the node was forgotten

	// mu is held by one writer, for one resource; no reader takes it.
	mu     sync.Mutex
	gpusAt int64            // time of the last search for expired GPUs, guarded by mu
	job    peergroup.Memory // of the view's job and role, guarded by mu
	size   int              // bytes taken from the cluster's share, guarded by mu
	born   int64            // time of the first report, Unix milliseconds

	fed fed // used by the feed
}

// retire marks a node as forgotten unless the node was seen since, or an update holds it.
func (e *entry) retire(seen int64) bool {
	if !e.mu.TryLock() {
		return false
	}
	defer e.mu.Unlock()
	return e.seen.Load() == seen && e.gone.CompareAndSwap(false, true)
}

// New returns an empty store. The configuration is valid.
func New(cfg Config) *Store {
	s := &Store{
		cfg: cfg, nodes: map[Key]*entry{}, short: func(string) {},
		bytes: fairshare.NewSlots[string](int(cfg.MaxBytes), cfg.ClusterShare),
	}
	s.index.sorted.Store(&rows{})
	s.groups.all = map[GroupKey]*Group{}
	s.episodes.init(cfg.MaxEpisodes, cfg.ClusterShare)
	return s
}

// OnShort calls f, from any goroutine, with the cluster of each node or update that found no
// room. It is set before the first update.
func (s *Store) OnShort(f func(cluster string)) { s.short = f }

// Nodes returns the number of nodes.
func (s *Store) Nodes() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.nodes)
}

// Drop is the reason for data that the store refused.
type Drop uint8

// The reasons.
const (
	DropNoNode         Drop = iota // the resource names no node, or none of at most MaxName bytes, or `.` or `..`
	DropMaxBytes                   // MaxBytes, or the cluster's share of them
	DropMaxGPUs                    // MaxGPUsPerNode
	DropMaxEpisodes                // MaxEpisodes or the share of them, only of episodes that are open
	DropMaxDetails                 // more Xids, reasons or throttle reasons of a GPU than are kept
	DropText                       // a name or text of more than MaxName bytes
	DropForeignEpisode             // a record with the ID of an episode of another node, group or kind
	numDrops
)

var drops = [numDrops]string{"no_node", "max_bytes", "max_gpus_per_node", "max_episodes", "max_details", "text_too_long", "foreign_episode"}

func (d Drop) String() string { return drops[d] }

// Dropped calls f for each reason with the number of refusals so far.
func (s *Store) Dropped(f func(Drop, int64)) {
	for d := range numDrops {
		f(d, s.drops[d].Load())
	}
}

func (s *Store) drop(d Drop) { s.drops[d].Add(1) }

func (s *Store) find(k Key) *entry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.nodes[k]
}

// entry returns the node's entry, a new one for an unknown node, nil where there is no room.
func (s *Store) entry(k Key, now time.Time) *entry {
	if e := s.find(k); e != nil {
		return e
	}
	// No path of a URL names the nodes `.` and `..` (RFC 3986, section 5.2.4).
	if k.Node == "" || k.Node == "." || k.Node == ".." || len(k.Node) > MaxName || len(k.Cluster) > MaxName {
		s.drop(DropNoNode)
		return nil
	}
	if !s.take(k.Cluster, leastNode) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.nodes[k]; e != nil {
		s.bytes.Give(k.Cluster, leastNode)
		return e
	}
	e := &entry{key: k, size: leastNode, born: now.UnixMilli()}
	n := &Node{Key: k, Born: unix(now.UnixMilli())}
	n.derive()
	e.view.Store(n)
	s.nodes[k] = e
	s.index.dirty.Store(true)
	return e
}

// take takes bytes from a cluster's share, or reports false. A negative number gives back.
func (s *Store) take(cluster string, bytes int) bool {
	if !take(s.bytes, cluster, bytes) {
		s.drop(DropMaxBytes)
		s.short(cluster)
		return false
	}
	return true
}

// Expire forgets nodes that have not reported for NodeExpiry, and those that make room under
// pressure, and returns how many. It ends open episodes that the views contradict.
func (s *Store) Expire(now time.Time) int {
	s.doubt(now)
	at, n := now.UnixMilli(), 0
	for _, e := range s.rows().all {
		seen := e.seen.Load()
		due := s.missing(seen, at) && s.bytes.Due(milliseconds(seen-e.born), milliseconds(at-seen), s.cfg.NodeExpiry)
		if due && e.retire(seen) {
			s.mu.Lock()
			delete(s.nodes, e.key)
			s.mu.Unlock()
			s.bytes.Give(e.key.Cluster, e.size)
			n++
		}
	}
	if n > 0 {
		s.index.dirty.Store(true)
		s.rows() // frees them
	}
	s.expireGroups(at - s.cfg.NodeExpiry.Milliseconds())
	return n
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Source has the latest views; the fleet_view extension is one.
type Source interface {
	// State returns the store of the latest views.
	State() *Store
}
