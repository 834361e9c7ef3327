// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
)

// Saved is a copy of what a tracker has learnt of ranks, communicators and jobs.
type Saved struct {
	ranks *straggler.Saved
	rest  savedRest
}

// savedRest has the exported fields of links and jobs.
type savedRest struct {
	Links []link
	Jobs  []job
}

// Save copies what was learnt of ranks, communicators and jobs.
func (b *Tracker) Save() *Saved {
	s := &Saved{ranks: b.engine.Save()}
	for _, l := range b.links {
		to := *l
		to.Flows = make(map[Class]*flow, len(l.Flows))
		for c, f := range l.Flows {
			to.Flows[c] = new(*f)
		}
		if l.Slow != nil {
			to.Slow = new(*l.Slow)
		}
		s.rest.Links = append(s.rest.Links, to)
	}
	for j := range maps.Values(b.jobs) {
		s.rest.Jobs = append(s.rest.Jobs, *j)
	}
	return s
}

// Write writes a copy in the form that Restore reads.
func (s *Saved) Write(w io.Writer) error {
	return errors.Join(gob.NewEncoder(w).Encode(&s.rest), s.ranks.Write(w))
}

// Restore reads into a new tracker what another one's Saved wrote. Their ranks have to report within
// the TTL.
func (b *Tracker) Restore(in interface {
	io.Reader
	io.ByteReader // so that gob reads no further than it must
}, now time.Time,
) error {
	var rest savedRest
	if err := gob.NewDecoder(in).Decode(&rest); err != nil {
		return fmt.Errorf("communicators and jobs cannot be read: %w", err)
	}
	b.restored = now
	for i := range rest.Links {
		l := &rest.Links[i]
		l.members = make(map[member]time.Time)
		if l.Flows == nil {
			l.Flows = make(map[Class]*flow)
		}
		b.links[key{l.Of.Cluster, l.Of.ID}] = l
	}
	for i := range rest.Jobs {
		j := &rest.Jobs[i]
		j.updated = j.Named
		b.jobs[key{j.Cluster, j.Group}] = j
	}
	return b.engine.Restore(in, now)
}
