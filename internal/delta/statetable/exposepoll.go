// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import "github.com/gpu-collector/gpu-collector/internal/promtext"

// disputed is the explanation of a name about which no majority agrees.
const disputed = "Clusters describe this metric differently."

// poll is the type and the explanation that most clusters give the family. The series
// are looked at only where there are several.
func (s *scrape) poll(f int, runs []run16) (promtext.Type, string) {
	fam := &s.families[f]
	kind := promtext.Gauge
	if fam.types[promtext.Counter] {
		kind = promtext.Counter
	}
	several := fam.types[promtext.Gauge] && fam.types[promtext.Counter]
	if !several && (fam.own || len(fam.helps) == 1) {
		return kind, fam.helps[0]
	}
	kinds, helps := newVotes(len(fam.types)), newVotes(len(fam.helps))
	for i, r := range runs {
		v := &s.nodes[r.node]
		if i > 0 && v.cluster != s.nodes[runs[i-1].node].cluster {
			kinds.next()
			helps.next()
		}
		func() {
			v.mu.Lock()
			defer v.mu.Unlock() // whoever recovers must not leave a node locked
			src := &s.sources[v.source]
			s.each(int32(f), v, runs[i:i+1], func(e *entry) {
				t := promtext.Gauge
				if m := &src.metrics[e.metric-1]; m.Type == TypeSum && m.Monotonic {
					t = promtext.Counter
				}
				kinds.add(int(t))
				helps.add(int(src.helps[e.metric-1]))
			})
		}()
	}
	kinds.next()
	helps.next()
	if several {
		kind = promtext.Type(max(kinds.winner(), int(promtext.Unknown)))
		if kinds.all[promtext.Gauge] && kinds.all[promtext.Counter] {
			s.exposed.Conflicts++
		}
	}
	if fam.own {
		return kind, fam.helps[0]
	}
	if won := helps.winner(); won >= 0 {
		return kind, fam.helps[won]
	}
	return kind, disputed
}

// votes count choices: a cluster has one vote, for the choice that most of its series
// make.
type votes struct {
	own, votes []int
	all        []bool
	said       []int // those of own that are not 0
}

func newVotes(choices int) *votes {
	return &votes{own: make([]int, choices), votes: make([]int, choices), all: make([]bool, choices)}
}

func (v *votes) add(choice int) {
	if v.own[choice] == 0 {
		v.said = append(v.said, choice)
	}
	v.own[choice]++
	v.all[choice] = true
}

// next ends a cluster.
func (v *votes) next() {
	best, draw := -1, false
	for _, choice := range v.said {
		switch {
		case best < 0 || v.own[choice] > v.own[best]:
			best, draw = choice, false
		case v.own[choice] == v.own[best]:
			draw = true
		}
	}
	if best >= 0 && !draw {
		v.votes[best]++
	}
	for _, choice := range v.said {
		v.own[choice] = 0
	}
	v.said = v.said[:0]
}

// winner is the choice with the most votes, -1 at a draw.
func (v *votes) winner() int {
	best, draw := 0, false
	for choice := 1; choice < len(v.votes); choice++ {
		switch {
		case v.votes[choice] > v.votes[best]:
			best, draw = choice, false
		case v.votes[choice] == v.votes[best]:
			draw = true
		}
	}
	if draw {
		return -1
	}
	return best
}
