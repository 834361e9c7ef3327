// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// screen is what a person sees: lines that stay, and one that moves.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	page     string
	began    time.Time
	moving   bool // the cursor is behind the line that moves
	told     time.Time
	named    [numFaults]bool
	ended    bool // what the collector says of its end is for its log
}

// The faults of the demo.
const (
	recorded = iota
	hot
	lost
	rack
	numFaults
)

func newScreen(out io.Writer, terminal bool, page string) *screen {
	return &screen{out: out, terminal: terminal, page: page, began: time.Now()}
}

// entry is a line of the collector's log in JSON.
type entry struct {
	Level   string `json:"level"`
	Message string `json:"msg"`
	Node    string `json:"node"`
	Page    string `json:"page"`
	Error   string `json:"error"`
}

// follow reads the collector's log to its end.
func (s *screen) follow(log io.Reader) error {
	lines := bufio.NewScanner(log)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	for lines.Scan() {
		s.line(lines.Bytes())
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return nil
}

// line shows a line of the log where it is news to a person.
func (s *screen) line(text []byte) {
	var e entry
	if json.Unmarshal(text, &e) != nil {
		s.print(string(text) + "\n") // of a collector that does not start
		return
	}
	// gRPC's own words are about the moment in which the collector starts.
	if e.Level == "info" || e.Level == "debug" || strings.HasPrefix(e.Message, "[core]") {
		return
	}
	s.mu.Lock()
	before := s.count()
	s.note(&e)
	found, all := s.count() > before, s.count() == numFaults
	s.mu.Unlock()
	shown := fmt.Sprintf("%4s  %s", s.since(), e.Message)
	if e.Error != "" {
		shown += ": " + e.Error
	}
	if e.Node != "" && !strings.Contains(e.Message, e.Node) {
		shown += " (" + e.Node + ")"
	}
	if e.Page != "" {
		shown += "\n      " + e.Page
	}
	s.print(shown + "\n")
	if found && all {
		s.print(fmt.Sprintf("%4s  All %d faults are named. The page shows them: %s\n", s.since(), numFaults, s.page))
	}
}

// note remembers which of the faults an entry names.
func (s *screen) note(e *entry) {
	straggler := strings.HasPrefix(e.Message, "STRAGGLER ")
	switch {
	case straggler && e.Node == recordedNode:
		s.named[recorded] = true
	case straggler && e.Node == nodeName(hotNode):
		s.named[hot] = true
	case straggler && e.Node == nodeName(lostNode):
		s.named[lost] = true
	case strings.Contains(e.Message, "rack "+rackName+":"):
		s.named[rack] = true
	}
}

func (s *screen) count() (n int) {
	for _, named := range s.named {
		if named {
			n++
		}
	}
	return n
}

func (s *screen) since() string { return fmt.Sprintf("%.0fs", time.Since(s.began).Seconds()) }

// print adds lines that stay.
func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if s.moving {
		_, _ = io.WriteString(s.out, "\r\x1b[K")
		s.moving = false
	}
	_, _ = io.WriteString(s.out, text)
}

// quiet is how often a log without a terminal hears that nothing is new.
const quiet = 10 * time.Second

// progress draws the line that moves.
func (s *screen) progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.terminal && time.Since(s.told) < quiet {
		return
	}
	s.told = time.Now()
	text := fmt.Sprintf("%4s  %d of %d faults are named", s.since(), s.count(), numFaults)
	if s.count() == 0 {
		text += "; a node is judged once it was compared six times"
	}
	if s.terminal {
		_, _ = fmt.Fprintf(s.out, "\r%s\x1b[K", text)
		s.moving = true
	} else {
		_, _ = fmt.Fprintln(s.out, text)
	}
}

// end leaves the terminal at the beginning of a line.
func (s *screen) end() {
	s.print("")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}
