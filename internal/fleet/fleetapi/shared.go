// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
)

// Bounds of the shared bytes. Clients wake together, once per frame of the feed, and a fleet of
// 5,000 nodes of 8 GPUs takes 50 MB. Beyond the bound each client's bytes are encoded anew.
const (
	sharedFor   = 500 * time.Millisecond
	sharedBytes = 64 << 20
)

// shared holds nodes and episodes, encoded once for all clients of the stream. Ages count from
// at, which is in each event.
type shared struct {
	at time.Time
	// nodes are by form: *fleetstate.Node to *encoded. A changed node has another view.
	nodes [numForms]sync.Map

	mu       sync.Mutex // held while encoding: all clients need the same at a time
	bytes    int
	version  uint64 // of the episodes
	episodes []byte
}

// sharing returns the current shared bytes.
func (a *API) sharing() *shared {
	now, s := a.o.Now(), a.shared.Load()
	if s != nil && now.Sub(s.at) < sharedFor && !now.Before(s.at) {
		return s
	}
	next := &shared{at: now}
	if a.shared.CompareAndSwap(s, next) {
		return next
	}
	return a.sharing() // another client was quicker
}

// form is an encoding of a node.
type form uint8

const (
	formNode form = iota
	formNodeWithGPUs
	formBrief
	formSeen
	numForms
)

// encoded is a form of a view with its last sign of life, which is no part of
// the view.
type encoded struct {
	seen  time.Time
	state string
	text  []byte
}

// known returns a form of a node that is already encoded.
func (s *shared) known(f form, v *fleetstate.View) []byte {
	if e, ok := s.nodes[f].Load(v.Node); ok {
		if e := e.(*encoded); e.seen.Equal(v.Seen) && e.state == v.State {
			return e.text
		}
	}
	return nil
}

// node returns a form of a node in JSON, which must not be changed.
func (s *shared) node(c *converter, f form, v *fleetstate.View) ([]byte, error) {
	if text := s.known(f, v); text != nil {
		return text, nil
	}
	s.mu.Lock()
	if s.bytes > sharedBytes {
		s.mu.Unlock()
		return c.encode(f, v)
	}
	defer s.mu.Unlock()
	if text := s.known(f, v); text != nil {
		return text, nil
	}
	text, err := c.encode(f, v)
	if s.bytes += len(text); err == nil && s.bytes <= sharedBytes {
		s.nodes[f].Store(v.Node, &encoded{v.Seen, v.State, text})
	}
	return text, err
}

// encode returns a form of a node in JSON.
func (c *converter) encode(f form, v *fleetstate.View) ([]byte, error) {
	switch f {
	case formSeen:
		return json.Marshal(Seen{v.Key, c.sighting(v.Seen), v.State})
	case formBrief:
		return json.Marshal(brief(v))
	default:
		return json.Marshal(c.node(*v, f == formNodeWithGPUs))
	}
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
