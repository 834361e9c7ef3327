// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// Saved is a copy of what a book has learnt of ranks, communicators and jobs.
type Saved struct {
	ranks *straggler.Saved
	rest  savedRest
}

type savedRest struct {
	Links []savedLink
	Jobs  []savedJob
}

type savedLink struct {
	Of    Rank
	Flows map[Class]flow
	Slow  *episode.Episode
	Ended time.Time
}

// savedJob is a job that stands still, or did.
type savedJob struct {
	episode.Episode
	Named bool
}

// Save copies what was learnt of ranks, communicators and jobs.
func (b *Book) Save() *Saved {
	s := &Saved{ranks: b.engine.Save()}
	for _, l := range b.links {
		to := savedLink{Of: l.of, Flows: make(map[Class]flow, len(l.flows)), Ended: l.ended}
		for c, f := range l.flows {
			to.Flows[c] = *f
		}
		if l.slow != nil {
			own := *l.slow
			to.Slow = &own
		}
		s.rest.Links = append(s.rest.Links, to)
	}
	for j := range maps.Values(b.jobs) {
		s.rest.Jobs = append(s.rest.Jobs, savedJob{j.Episode, j.named})
	}
	return s
}

// Write writes a copy in the form that Restore reads.
func (s *Saved) Write(w io.Writer) error {
	return errors.Join(gob.NewEncoder(w).Encode(&s.rest), s.ranks.Write(w))
}

// Restore reads into a new book what another one's Saved wrote. Their ranks have to report within
// the TTL.
func (b *Book) Restore(in interface {
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
		from := &rest.Links[i]
		l := &link{of: from.Of, members: make(map[member]time.Time), flows: make(map[Class]*flow, len(from.Flows)), slow: from.Slow, ended: from.Ended}
		for c, f := range from.Flows {
			l.flows[c] = &f
		}
		b.links[key{l.of.Cluster, l.of.ID}] = l
	}
	for _, from := range rest.Jobs {
		b.jobs[key{from.Cluster, from.Group}] = &job{Episode: from.Episode, named: from.Named, updated: from.Named}
	}
	return b.engine.Restore(in, now)
}
