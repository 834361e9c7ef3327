// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
)

type item struct{ ID, Kind, Cluster, Group, Node, Part, What, Why, Next string }
type list struct {
	Items  []item
	Counts struct{ Nodes int }
}

type client struct{ page string }

func newClient(page string) (*client, error) { return &client{page}, nil }

func (c *client) attention(ctx context.Context) (*list, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.page+"api/v1/attention", nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	var l list
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", r.Status)
	}
	return &l, json.NewDecoder(r.Body).Decode(&l)
}

// screen is what a person sees: lines that stay, and one that moves.
type screen struct {
	out      io.Writer
	terminal bool
	page     string
	moving   bool          // the cursor is behind the line that moves
	quiet    time.Duration // until then nothing new is said without a terminal
	nodes    int
	told     map[string]bool // items
	found    map[fault]bool
}

func newScreen(out io.Writer, terminal bool, page string) *screen {
	return &screen{out: out, terminal: terminal, page: page, told: map[string]bool{}, found: map[fault]bool{}}
}

func (s *screen) begin(moved []string) {
	for _, line := range moved {
		s.line(line)
	}
	s.line("A recorded training run of 16 workers replays beside 32 simulated nodes of eight GPUs.")
	s.line(fmt.Sprintf("After %s things go wrong: %d faults are to be found.", healthy, len(faults)))
	s.line("  the page  " + s.page)
	s.line("  Ctrl-C ends it.")
}

// show tells of what is new in a list.
func (s *screen) show(l *list) {
	s.nodes = l.Counts.Nodes
	for _, it := range l.Items {
		if s.told[it.ID] {
			continue
		}
		s.told[it.ID] = true
		who := it.Node
		if who == "" {
			who = it.Group
		}
		if it.Part != "" {
			who += ", " + it.Part
		}
		link := s.page + "#in=" + url.QueryEscape(it.Cluster)
		if it.Node != "" {
			link += "&node=" + url.QueryEscape(it.Node)
		}
		s.line(fmt.Sprintf("%s: %s: %s", it.Cluster, who, it.What))
		s.line("  why   " + it.Why)
		s.line("  next  " + it.Next + " " + link)
		before := len(s.found)
		for _, f := range faults {
			if f.kind == it.Kind && f.cluster == it.Cluster && f.node == it.Node {
				s.found[f] = true
			}
		}
		if len(s.found) > before && len(s.found) == len(faults) {
			s.line(fmt.Sprintf("All %d faults are found. It goes on: %s shows the fleet.", len(faults), s.page))
		}
	}
}

// quietFor is how long a log without a terminal hears nothing.
const quietFor = 10 * time.Second

// progress draws the line that moves.
func (s *screen) progress(elapsed time.Duration) {
	text := fmt.Sprintf("%4.0f s  %d nodes report, %d of %d faults are found", elapsed.Seconds(), s.nodes, len(s.found), len(faults))
	switch {
	case s.terminal:
		_, _ = fmt.Fprintf(s.out, "\r%s\x1b[K", text)
		s.moving = true
	case elapsed >= s.quiet:
		s.quiet = elapsed + quietFor
		s.line(text)
	}
}

// line adds a line that stays.
func (s *screen) line(text string) {
	if s.moving {
		_, _ = io.WriteString(s.out, "\r\x1b[K")
		s.moving = false
	}
	_, _ = io.WriteString(s.out, legible(text)+"\n")
}

// end leaves the terminal at the beginning of a line.
func (s *screen) end() {
	if s.moving {
		_, _ = io.WriteString(s.out, "\n")
	}
}

// legible has no character in it that a terminal would obey.
func legible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}

// lastLines are what a person needs of a log.
func lastLines(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
