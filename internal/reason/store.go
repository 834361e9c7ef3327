// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Why a reading is not taken.
var (
	ErrName           = errors.New("name is empty or too long")
	ErrTooManyNodes   = errors.New("more nodes than `MaxNodes`")
	ErrClusterNodes   = errors.New("cluster holds its share of `MaxNodes`")
	ErrTooManyBytes   = errors.New("cluster holds its share of `MaxBytes`")
	ErrTooManyDevices = errors.New("more GPUs or adapters than a node may have")
)

// Bounds of a node. A node has at most 8 GPUs of 7 MIG slices each.
const (
	MaxGPUs     = 64
	MaxAdapters = 32
	maxSeries   = 128
	maxName     = 253 // a DNS name's (RFC 1035)
)

// Config of a Store.
type Config struct {
	// MaxNodes that are kept; a cluster holds no more than half of what the
	// others do not, so that nobody takes it all. A node of 8 GPUs takes about 2.8 kB.
	MaxNodes int
	// MaxBytes bounds the memory of all nodes, with the same share.
	MaxBytes int
	// Retention without a word from a node forgets it.
	Retention time.Duration
}

// Store holds the facts of the nodes of all clusters. It is not safe for
// concurrent use.
type Store struct {
	cfg    Config
	nodes  map[nodeKey]*Node
	held   *fairshare.Ledger[string] // nodes by cluster
	bytes  *fairshare.Ledger[string] // the same
	all    []*Node                   // in no order; for Sweep
	cursor int
	peers  peerScratch
}

type nodeKey struct{ cluster, node string }

// New returns an empty Store.
func New(cfg Config) *Store {
	return &Store{
		cfg: cfg, nodes: make(map[nodeKey]*Node),
		held: fairshare.New[string](cfg.MaxNodes, fairshare.Half), bytes: fairshare.New[string](cfg.MaxBytes, fairshare.Half),
	}
}

// Len returns the number of nodes that are kept.
func (s *Store) Len() int { return len(s.all) }

// Node returns the node, new if need be, for the readings of one report that
// arrived at now. The names are copied when they are new.
func (s *Store) Node(cluster, node string, now time.Time) (*Node, error) {
	at := seconds(now)
	if n, ok := s.nodes[nodeKey{cluster, node}]; ok {
		n.hear(at)
		return n, nil
	}
	switch {
	case cluster == "" || node == "" || len(cluster) > maxName || len(node) > maxName:
		return nil, ErrName
	case len(s.all) >= s.cfg.MaxNodes:
		return nil, ErrTooManyNodes
	case s.held.Room(cluster) <= 0:
		return nil, ErrClusterNodes
	}
	key := nodeKey{strings.Clone(cluster), strings.Clone(node)}
	n := &Node{store: s, key: key, first: at, seen: at}
	if !n.pay(nodeBytes + len(cluster) + len(node)) {
		return nil, ErrTooManyBytes
	}
	s.held.Take(key.cluster, 1)
	for i := range n.gauges {
		n.gauges[i] = unknown
	}
	s.nodes[key] = n
	s.all = append(s.all, n)
	return n, nil
}

// Touch keeps a node that is known from being forgotten: it was heard of.
func (s *Store) Touch(cluster, node string, now time.Time) {
	if n, ok := s.nodes[nodeKey{cluster, node}]; ok {
		n.hear(seconds(now))
	}
}

// Sweep forgets nodes that were not heard of for Retention. One call looks at
// a part of them, 32 calls or fewer at all.
func (s *Store) Sweep(now time.Time) {
	limit := int64(seconds(now)) - int64(s.cfg.Retention/time.Second)
	for range s.cfg.MaxNodes/32 + 1 {
		if len(s.all) == 0 {
			return
		}
		if s.cursor >= len(s.all) {
			s.cursor = 0
		}
		n := s.all[s.cursor]
		if int64(n.seen) >= limit {
			s.cursor++
			continue
		}
		delete(s.nodes, n.key)
		s.held.Give(n.key.cluster, 1)
		s.bytes.Give(n.key.cluster, n.bytes)
		end := len(s.all) - 1
		s.all[s.cursor], s.all[end] = s.all[end], nil
		s.all = s.all[:end]
	}
}

// GPUs returns how many GPUs a node should have, else how many answer, and
// whether either is known.
func (s *Store) GPUs(cluster, node string) (int, bool) {
	n, ok := s.nodes[nodeKey{cluster, node}]
	if !ok {
		return 0, false
	}
	for _, f := range [...]reading.Field{reading.GPUsExpected, reading.GPUsFound} {
		if v := n.gauges[f-firstOfNode]; v > 0 {
			return int(v), true
		}
	}
	return 0, false
}

// cloneQuiet in seconds are two resyncs of a node: whoever says nothing for so long is gone.
const cloneQuiet = 300

// Cloned reports whether two machines, or two agents of one, have a node's name: more GPUs
// answer than the node says, or a counter started now here, now there. GPUs that were told
// before the newest one, and not since, were taken out.
func (s *Store) Cloned(cluster, node string) bool {
	n := s.nodes[nodeKey{cluster, node}]
	if n == nil {
		return false
	}
	answer := 0
	for i := range n.gpus {
		if g := &n.gpus[i]; g.up == UpAnswers && !strings.HasPrefix(g.id, "MIG-") && g.seen >= n.added && g.seen+cloneQuiet > n.seen {
			answer++
		}
	}
	found := n.gauges[reading.GPUsFound-firstOfNode]
	return found > 0 && float32(answer) > found || n.older != 0 && n.older == n.seen
}

// Devices returns of how many GPUs and slices a node has told.
func (s *Store) Devices(cluster, node string) int {
	if n := s.nodes[nodeKey{cluster, node}]; n != nil {
		return len(n.gpus)
	}
	return 0
}

// seconds is a time as the store keeps it; it lasts until 2106.
func seconds(t time.Time) uint32 {
	return uint32(min(max(t.Unix(), 0), math.MaxUint32))
}

// unknown is a gauge or counter without a reading.
var unknown = float32(math.NaN())

func known(x float32) bool { return !math.IsNaN(float64(x)) }
