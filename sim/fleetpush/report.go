// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// Report is what a run came to. Durations are in seconds, sizes in bytes.
type Report struct {
	Nodes   int     `json:"nodes"`
	Seconds float64 `json:"seconds"`
	// Pushes are those that were answered or failed; Accepted those that were taken.
	Pushes   int64 `json:"pushes"`
	Accepted int64 `json:"accepted"`
	// Refusals are by gRPC code, HTTP status, or what went wrong here.
	Refusals map[string]int64 `json:"refusals"`
	// Skipped are pushes that were not made: late since the node's next was due,
	// busy since its last had not ended, told since the other end asked to wait.
	Skipped        map[string]int64 `json:"skipped"`
	RejectedPoints int64            `json:"rejected_points"`
	// Bytes are those of the reports before compression.
	Bytes   int64   `json:"bytes"`
	Latency Latency `json:"latency"`
	// Thresholds are answers with the parameters of the node's group,
	// NewThresholds those that told the node something new.
	Thresholds    int64 `json:"thresholds"`
	NewThresholds int64 `json:"new_thresholds"`
	BadHeaders    int64 `json:"bad_headers"`
	// NodesWithThreshold know one at the end.
	NodesWithThreshold int `json:"nodes_with_threshold"`
	// Modes are the nodes by what they judge themselves by at the end, Stragglers
	// those of them that take themselves for one.
	Modes      map[string]int `json:"modes"`
	Stragglers map[string]int `json:"stragglers"`
	// Faults are those that were chosen. FalseVerdicts are how often nodes took
	// themselves for stragglers before a fault of theirs or without one; at most
	// 100 of them are named.
	Faults        []FaultReport `json:"faults,omitempty"`
	FalseVerdicts int           `json:"false_verdicts"`
	FalseNodes    []string      `json:"false_nodes,omitempty"`
	LastError     string        `json:"last_error,omitempty"`
}

// FaultReport is what became of a fault.
type FaultReport struct {
	// Node had the fault, or Share of all nodes did.
	Node  string  `json:"node,omitempty"`
	Share float64 `json:"share,omitempty"`
	// Nodes have the fault, and Found of them took themselves for stragglers.
	Nodes int           `json:"nodes"`
	Found int           `json:"found"`
	Kind  fleetsim.Kind `json:"kind"`
	// GPU is -1 for all of them.
	GPU      int     `json:"gpu"`
	Severity float64 `json:"severity,omitempty"`
	// From is when it begins, in seconds since the node's start.
	From float64 `json:"from"`
	// Delay is the time from when the fault began until the node began to take itself
	// for a straggler, absent if it did not: of several nodes the longest.
	Delay *float64 `json:"delay,omitempty"`
	// By is what the nodes judged themselves by then: fleet, cached or local,
	// sorted and joined by commas where they differ.
	By string `json:"by,omitempty"`
}

const maxFalseNodes = 100

// Latency of the pushes in seconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
	// MaxAt and MaxNode are when the longest push began and whose it was.
	MaxAt   time.Time `json:"max_at"`
	MaxNode string    `json:"max_node"`
}

// Report returns what has come to pass so far.
func (p *Pusher) Report() Report {
	r := p.stats.report(time.Now(), p.fleet.cfg.NodeName)
	p.fleet.report(&r)
	return r
}

// Why a push was not made, as Report.Skipped has it.
const (
	skipLate = "late" // the node's next one was due
	skipBusy = "busy" // the node's last one had not ended
	skipTold = "told" // the other end had asked to wait
)

// maxCodes bounds the kinds of refusals that are told apart.
const maxCodes = 64

// stats counts what happens.
type stats struct {
	mu       sync.Mutex
	from, to time.Time
	sum      Report                  // what is counted of it
	latency  *hdrhistogram.Histogram // microseconds
	longest  int                     // the node of the longest push
}

// The histogram's bounds: a push of less is a microsecond, of more ten minutes.
const (
	leastMicros = 1
	mostMicros  = int64(10 * time.Minute / time.Microsecond)
	digitsKept  = 3
)

func (s *stats) init(nodes int) {
	s.sum = Report{Nodes: nodes, Refusals: map[string]int64{}, Skipped: map[string]int64{skipLate: 0, skipBusy: 0, skipTold: 0}}
	s.latency = hdrhistogram.New(leastMicros, mostMicros, digitsKept)
}

// at notes when the run began or ended, which is the field.
func (s *stats) at(field *time.Time, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = now
}

func (s *stats) skip(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Skipped[why]++
}

func (s *stats) refuse(code string, err error) {
	if _, known := s.sum.Refusals[code]; !known && len(s.sum.Refusals) >= maxCodes {
		code = "other"
	}
	s.sum.Refusals[code]++
	s.sum.LastError = err.Error()
}

func (s *stats) push(node int, at time.Time, took time.Duration, size int, r *result, h *Heard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Pushes++
	s.sum.Bytes += int64(size)
	if r.Accepted {
		s.sum.Accepted++
		s.sum.RejectedPoints += r.rejected
	} else {
		s.refuse(r.code, r.err)
	}
	_ = s.latency.RecordValue(min(max(took.Microseconds(), leastMicros), mostMicros)) // within its bounds
	if l := &s.sum.Latency; took.Seconds() > l.Max {
		l.Max, l.MaxAt, s.longest = took.Seconds(), at, node
	}
	if h.Threshold {
		s.sum.Thresholds++
	}
	if h.New {
		s.sum.NewThresholds++
	}
	if h.Err != nil {
		s.sum.BadHeaders++
	}
}

// report is what was counted until now.
func (s *stats) report(now time.Time, name func(int) string) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sum
	r.Refusals, r.Skipped = maps.Clone(r.Refusals), maps.Clone(r.Skipped)
	if !s.to.IsZero() {
		now = s.to
	}
	if !s.from.IsZero() {
		r.Seconds = now.Sub(s.from).Seconds()
	}
	if l := &r.Latency; r.Pushes > 0 {
		at := func(q float64) float64 { return float64(s.latency.ValueAtQuantile(q)) / 1e6 }
		l.P50, l.P90, l.P99, l.MaxNode = at(50), at(90), at(99), name(s.longest)
	}
	return r
}

// report adds what the nodes know.
func (f *Fleet) report(r *Report) {
	r.Modes, r.Stragglers = map[string]int{}, map[string]int{}
	for i := range f.nodes {
		n := &f.nodes[i]
		n.mu.Lock()
		if n.received.Threshold > 0 || n.received.All {
			r.NodesWithThreshold++
		}
		if n.score != nil && !n.at.IsZero() {
			r.Modes[n.res.Mode.String()]++
			if n.res.Straggler {
				r.Stragglers[n.res.Mode.String()]++
			}
		}
		if r.FalseVerdicts += n.wrong; n.wrong > 0 && len(r.FalseNodes) < maxFalseNodes {
			r.FalseNodes = append(r.FalseNodes, f.cfg.NodeName(i))
		}
		n.mu.Unlock()
	}
	for i := range f.cfg.Faults {
		r.Faults = append(r.Faults, f.reportFault(i))
	}
}

func (f *Fleet) reportFault(fault int) FaultReport {
	x := &f.cfg.Faults[fault]
	hit := x.Nodes(len(f.nodes))
	to := FaultReport{Share: x.Share, Nodes: len(hit), Kind: x.Kind, GPU: x.GPU, Severity: x.Severity, From: x.From.Seconds()}
	if x.Share == 0 {
		to.Node = f.cfg.NodeName(x.Node)
	}
	var longest time.Duration
	modes := map[string]bool{}
	for _, i := range hit {
		n := &f.nodes[i]
		n.mu.Lock()
		if t := n.troubles[slices.IndexFunc(n.troubles, func(t trouble) bool { return t.fault == fault })]; t.found > 0 {
			to.Found++
			longest = max(longest, t.found-t.from)
			modes[t.by.String()] = true
		}
		n.mu.Unlock()
	}
	if to.Found > 0 {
		delay := longest.Seconds()
		to.Delay, to.By = &delay, strings.Join(slices.Sorted(maps.Keys(modes)), ",")
	}
	return to
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-16s "+format+"\n", append([]any{name}, args...)...)
	}
	line("nodes", "%d", r.Nodes)
	line("time", "%.1f s", r.Seconds)
	line("pushes", "%d, %d accepted, %.1f per second", r.Pushes, r.Accepted, float64(r.Pushes)/max(r.Seconds, 1e-9))
	for _, code := range slices.Sorted(maps.Keys(r.Refusals)) {
		line("refused", "%d %s", r.Refusals[code], code)
	}
	if r.LastError != "" {
		line("last error", "%s", r.LastError)
	}
	line("skipped", "%d late, %d busy, %d asked to wait", r.Skipped[skipLate], r.Skipped[skipBusy], r.Skipped[skipTold])
	if r.RejectedPoints > 0 {
		line("rejected", "%d points of accepted pushes", r.RejectedPoints)
	}
	line("bytes", "%d before compression, %.0f per push", r.Bytes, float64(r.Bytes)/float64(max(1, r.Pushes)))
	ms := func(s float64) string { return fmt.Sprintf("%.1f ms", 1000*s) }
	line("latency", "p50 %s, p90 %s, p99 %s, max %s", ms(r.Latency.P50), ms(r.Latency.P90), ms(r.Latency.P99), ms(r.Latency.Max))
	if r.Pushes > 0 {
		line("longest push", "%s at %s", r.Latency.MaxNode, r.Latency.MaxAt.Format(time.RFC3339))
	}
	line("thresholds", "%d answers with one, %d of them new; %d of %d nodes know one", r.Thresholds, r.NewThresholds, r.NodesWithThreshold, r.Nodes)
	if r.BadHeaders > 0 {
		line("bad headers", "%d answers", r.BadHeaders)
	}
	for m := range nodescore.NumModes {
		if n := r.Modes[m.String()]; n > 0 {
			line("mode "+m.String(), "%d nodes, %d take themselves for stragglers", n, r.Stragglers[m.String()])
		}
	}
	for _, x := range r.Faults {
		gpu := ""
		if x.GPU >= 0 {
			gpu = fmt.Sprintf(" gpu %d", x.GPU)
		}
		who, outcome := x.Node, "was not found by the node"
		if x.Share != 0 {
			who, outcome = fmt.Sprintf("%.4g %% of nodes", 100*x.Share), fmt.Sprintf("was found by none of %d nodes", x.Nodes)
		}
		if x.Delay != nil {
			outcome = fmt.Sprintf("was found by the node after %.0f s (%s)", *x.Delay, x.By)
			if x.Share != 0 {
				outcome = fmt.Sprintf("was found by %d of %d nodes, the last after %.0f s (%s)", x.Found, x.Nodes, *x.Delay, x.By)
			}
		}
		line("fault", "%s%s: %s, from %.0f s, %s", who, gpu, x.Kind, x.From, outcome)
	}
	if len(r.Modes) > 0 {
		line("false verdicts", "%d %s", r.FalseVerdicts, strings.Join(r.FalseNodes, " "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
