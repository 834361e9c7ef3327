// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
)

// Bounds of the shared bytes: clients wake together, once per frame of the feed,
// and a fleet of 5,000 nodes of 8 GPUs takes some 50 MB. Beyond the bound each
// client's bytes are encoded anew.
const (
	sharedFor   = 500 * time.Millisecond
	sharedBytes = 64 << 20
)

// shared is what clients of the stream are sent, encoded once for all of them.
// Ages count from at, which each event tells.
type shared struct {
	at    time.Time
	bytes atomic.Int64
	nodes sync.Map // *fleetstate.Node to *sharedNode: a node that changed has another view

	mu       sync.Mutex
	version  uint64 // of the episodes
	episodes []byte
}

// sharing returns what is shared now.
func (a *API) sharing() *shared {
	now, s := a.o.Now(), a.shared.Load()
	if s != nil && now.Sub(s.at) < sharedFor && !now.Before(s.at) {
		return s
	}
	next := &shared{at: now}
	if a.shared.CompareAndSwap(s, next) {
		return next
	}
	return a.sharing() // somebody else was quicker
}

// form is a way to tell of a node.
type form uint8

const (
	formNode form = iota
	formNodeWithGPUs
	formSeen
	numForms
)

type sharedNode struct {
	// mu is held while a form is encoded: all clients want the same one at the
	// same time.
	mu    sync.Mutex
	forms [numForms]atomic.Pointer[encoded]
}

// encoded is a form of a view with its last sign of life, which is no part of
// the view.
type encoded struct {
	seen  time.Time
	state string
	text  []byte
}

func (e *encoded) of(v *fleetstate.View) bool {
	return e != nil && e.seen.Equal(v.Seen) && e.state == v.State
}

// node returns a form of a node in JSON, which must not be changed.
func (s *shared) node(c *converter, f form, v *fleetstate.View) ([]byte, error) {
	known, ok := s.nodes.Load(v.Node)
	if !ok {
		if s.bytes.Load() > sharedBytes {
			return c.encode(f, v)
		}
		known, _ = s.nodes.LoadOrStore(v.Node, &sharedNode{})
	}
	n := known.(*sharedNode)
	if e := n.forms[f].Load(); e.of(v) {
		return e.text, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := n.forms[f].Load(); e.of(v) {
		return e.text, nil
	}
	text, err := c.encode(f, v)
	if err == nil && s.bytes.Add(int64(len(text))) <= sharedBytes {
		n.forms[f].Store(&encoded{v.Seen, v.State, text})
	}
	return text, err
}

// encode returns a form of a node in JSON.
func (c *converter) encode(f form, v *fleetstate.View) ([]byte, error) {
	if f == formSeen {
		return json.Marshal(Seen{Key(v.Key), c.sighting(v.Seen), v.State})
	}
	return json.Marshal(c.node(*v, f == formNodeWithGPUs))
}

// openEpisodes returns an EpisodeList of all clusters in JSON.
func (s *shared) openEpisodes(version uint64, encode func() ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.episodes != nil && s.version == version {
		return s.episodes, nil
	}
	text, err := encode()
	if err == nil {
		s.version, s.episodes = version, text
	}
	return text, err
}
