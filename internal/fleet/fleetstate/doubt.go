// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// doubt ends the open episodes that the views have contradicted for EpisodeDoubt. A restarted
// gateway has lost its open episodes, so it never reports their ends.
func (s *Store) doubt(now time.Time) {
	e := &s.episodes
	for _, ep := range s.Episodes(&EpisodeFilter{Open: new(true)}) {
		key, contradicted, account := ep.Key(), s.contradicts(ep, now), s.account(ep)
		e.mu.Lock()
		switch since, doubted := e.doubted[key]; {
		case e.all[key].Episode != ep || !contradicted:
			delete(e.doubted, key)
		case !doubted:
			e.doubted[key] = now
		case now.Sub(since) >= s.cfg.EpisodeDoubt:
			e.end(concludedEnd(ep, since, episode.CauseUnconfirmed), account)
		}
		e.mu.Unlock()
	}
}

// contradicts reports whether the views show the whole subject of the episode as well.
func (s *Store) contradicts(ep *episode.Episode, now time.Time) bool {
	switch {
	case ep.Subject == episode.SubjectLink || ep.Subject == episode.SubjectJob:
		return s.outlived(ep, now) // they have no view
	case ep.Subject == episode.SubjectGroup:
		g, known := s.Group(GroupKey{ep.Cluster, ep.Group})
		if !known {
			return s.outlived(ep, now)
		}
		return g.Get(reading.GroupIncident) != nil && !g.Flag(reading.GroupIncident)
	case ep.Node != "":
		return s.nodeContradicts(ep, ep.Node, now)
	case len(ep.Nodes) == 0:
		return s.outlived(ep, now)
	default:
		return !slices.ContainsFunc(ep.Nodes, func(n string) bool { return !s.nodeContradicts(ep, n, now) })
	}
}

func (s *Store) nodeContradicts(ep *episode.Episode, node string, now time.Time) bool {
	v, known := s.Node(Key{ep.Cluster, node}, now)
	switch {
	case !known:
		return s.outlived(ep, now)
	case ep.Subject == episode.SubjectMissing:
		return v.State != gpusemconv.StateMissing && v.Seen.After(ep.Updated)
	default:
		// A missing node has no verdict.
		return v.State == gpusemconv.StateMissing || v.Values.Get(reading.NodeStraggler) != nil && !v.Values.Flag(reading.NodeStraggler)
	}
}

// outlived reports whether the episode is so old that its subject would be forgotten.
func (s *Store) outlived(ep *episode.Episode, now time.Time) bool {
	return now.Sub(ep.Updated) >= s.cfg.NodeExpiry
}
