// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// screen is what a person sees: lines that stay, and one that moves.
type screen struct {
	out      io.Writer
	terminal bool
	page     string
	moving   bool          // the cursor is behind the line that moves
	next     time.Duration // of progress, where no line can move
	nodes    int64
	items    map[string]itemState // by item
	found    map[fault]bool
}

func newScreen(out io.Writer, terminal bool, page string) *screen {
	return &screen{out: out, terminal: terminal, page: page, next: quiet, items: map[string]itemState{}, found: map[fault]bool{}}
}

// quiet is the time between two lines of progress where no line can move; before the first
// verdict it doubles.
const quiet = 10 * time.Second

// itemState is an item's text, how often in a row it was that, and whether it was shown.
type itemState struct {
	what     string
	times    int
	reported bool
}

// settled is how often an item is the same before it is shown: more nodes of a rack may be on
// their way.
const settled = 6

func (s *screen) begin(moved string) {
	if moved != "" {
		s.line(moved)
	}
	s.line("A recorded training run of 16 workers replays beside 32 simulated nodes of eight GPUs.")
	s.line(fmt.Sprintf("Within %.0f seconds things go wrong: %d faults are to be found within a minute.", healthy.Seconds(), len(faults)))
	s.line("The page: " + s.page + "   Ctrl-C ends it.")
}

func (s *screen) show(l *fleetclient.AttentionList, elapsed time.Duration) {
	s.nodes = l.Counts.Nodes
	for i := range l.Items {
		it := &l.Items[i]
		if it.EpisodeID == nil && (it.Kind == fleetclient.AttentionItemKindStraggler || it.Kind == fleetclient.AttentionItemKindGroupFault) {
			continue // its record, which has since when and why, is on its way
		}
		as := s.items[it.ID]
		what := fmt.Sprint(or(it.NodeCount, 0), or(it.Reason, ""), or(it.Part, "")) // its figures move
		if as.times++; as.what != what {
			as.what, as.times = what, 1
		}
		report := !as.reported && as.times >= settled
		as.reported = as.reported || report
		if s.items[it.ID] = as; !report {
			continue
		}
		s.verdict(it, elapsed)
		before := len(s.found)
		for _, f := range faults {
			if (f.kind == it.Kind || or(it.Straggler, false) && f.kind == fleetclient.AttentionItemKindStraggler) && f.cluster == it.Cluster && f.node == or(it.Node, "") {
				s.found[f] = true
			}
		}
		if len(s.found) > before && len(s.found) == len(faults) {
			s.line(fmt.Sprintf("%3.0f s  All %d faults are found. The demo goes on, see %s", elapsed.Seconds(), len(faults), s.page))
		}
	}
}

func (s *screen) verdict(it *fleetclient.AttentionItem, elapsed time.Duration) {
	subject, link := or(it.Node, ""), s.page+"#in="+url.QueryEscape(it.Cluster)+"&node="+url.QueryEscape(or(it.Node, ""))
	if subject == "" {
		link = s.page + "#cluster=" + url.QueryEscape(it.Cluster) + "&group=" + url.QueryEscape(or(it.Group, "")) + "&show=faults"
		if subject = strings.Join(or(it.Nodes, nil), ", "); subject == "" {
			subject = or(it.Group, "")
		}
	}
	if part := or(it.Part, ""); part != "" {
		subject += ", " + part
	}
	s.line(fmt.Sprintf("%3.0f s  %s (%s): %s%s", elapsed.Seconds(), subject, it.Cluster, it.What, figures(it)))
	s.line("       why:  " + or(it.Why, "see above"))
	s.line("       next: " + it.Next + " " + link)
}

// figures are since when, how sure, and at what cost, as far as that is known.
func figures(it *fleetclient.AttentionItem) string {
	var list []string
	if it.Since != nil {
		since := "since " + it.Since.Local().Format(time.TimeOnly)
		if or(it.SinceBefore, false) {
			since += " or before"
		}
		list = append(list, since)
	}
	if it.Confidence != nil {
		list = append(list, fmt.Sprintf("confidence %.0f %%", 100**it.Confidence))
	}
	if it.GPUHoursLostPerHour != nil {
		cost := fmt.Sprintf("costs %.3g GPUs", *it.GPUHoursLostPerHour)
		list = append(list, strings.Replace(cost, " 1 GPUs", " 1 GPU", 1))
	}
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

func or[T any](v *T, otherwise T) T {
	if v == nil {
		return otherwise
	}
	return *v
}

func (s *screen) progress(elapsed time.Duration) {
	text := fmt.Sprintf("%3.0f s  %d nodes report, %d of %d faults are found", elapsed.Seconds(), s.nodes, len(s.found), len(faults))
	switch {
	case s.terminal:
		_, _ = fmt.Fprintf(s.out, "\r%s\x1b[K", text)
		s.moving = true
	case elapsed >= s.next && len(s.found) < len(faults):
		if s.next = elapsed + quiet; len(s.items) == 0 {
			s.next = max(s.next, 2*elapsed)
		}
		s.line(text)
	}
}

// line adds a line that stays. Names come from clients: no terminal must obey them.
func (s *screen) line(text string) {
	s.end()
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
	_, _ = io.WriteString(s.out, text+"\n")
}

func (s *screen) end() {
	if s.moving {
		_, _ = io.WriteString(s.out, "\r\x1b[K")
	}
	s.moving = false
}
