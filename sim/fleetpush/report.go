// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// Report is what a run came to. Durations are in seconds, sizes in bytes.
type Report struct {
	Nodes    int              `json:"nodes"`
	Seconds  float64          `json:"seconds"`
	Pushes   int64            `json:"pushes"` // that were answered or failed
	Accepted int64            `json:"accepted"`
	Refusals map[string]int64 `json:"refusals"` // by gRPC code
	// Skipped are pushes that were not made: late since the node's next was due,
	// busy since its last had not ended, told since the server asked to wait.
	Skipped            map[string]int64 `json:"skipped"`
	RejectedPoints     int64            `json:"rejected_points"`
	Bytes              int64            `json:"bytes"` // of the reports before compression
	Latency            Latency          `json:"latency"`
	BadHeaders         int64            `json:"bad_headers"`          // answers with headers that are not valid
	NodesWithThreshold int              `json:"nodes_with_threshold"` // that know one at the end
	Faults             []FaultReport    `json:"faults,omitempty"`
	// FalseVerdicts are how often nodes took themselves for stragglers before a fault of
	// theirs or without one. FalseNodes names at most 100 of them.
	FalseVerdicts int      `json:"false_verdicts"`
	FalseNodes    []string `json:"false_nodes,omitempty"`
	LastError     string   `json:"last_error,omitempty"`
}

// FaultReport is what became of a fault.
type FaultReport struct {
	// Node had the fault, or Share of all nodes did.
	Node  string  `json:"node,omitempty"`
	Share float64 `json:"share,omitempty"`
	// Nodes have the fault, and Found of them took themselves for stragglers.
	Nodes    int           `json:"nodes"`
	Found    int           `json:"found"`
	Kind     fleetsim.Kind `json:"kind"`
	GPU      int           `json:"gpu"` // -1 for all of them
	Severity float64       `json:"severity,omitempty"`
	From     float64       `json:"from"` // when it begins, since the node's start
	// Delay is the time from when the fault began until the node began to take itself
	// for a straggler, absent if it did not: of several nodes the longest.
	Delay *float64 `json:"delay,omitempty"`
	// By is what that node judged itself by then: fleet, cached or local.
	By string `json:"by,omitempty"`
}

const maxFalseNodes = 100

// Latency of the pushes in seconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Why a push was not made, as Report.Skipped has it.
const (
	skipLate  = "late" // the node's next one was due
	skipBusy  = "busy" // the node's last one had not ended
	skipAsked = "told" // the server had asked to wait
)

// The histogram's bounds in microseconds: a push of more takes ten minutes.
const (
	leastMicros = 1
	mostMicros  = int64(10 * time.Minute / time.Microsecond)
	digitsKept  = 3
)

type stats struct {
	mu      sync.Mutex
	begin   time.Time
	sum     Report
	latency *hdrhistogram.Histogram
}

func newStats(nodes int) *stats {
	return &stats{
		begin: time.Now(), sum: Report{Nodes: nodes, Refusals: map[string]int64{}, Skipped: map[string]int64{}},
		latency: hdrhistogram.New(leastMicros, mostMicros, digitsKept),
	}
}

func (s *stats) skip(why string, pushes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Skipped[why] += pushes
}

// push counts a push, and whether the headers of its answer were bad.
func (s *stats) push(took time.Duration, size int, r *result, bad error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Pushes++
	s.sum.Bytes += int64(size)
	if r.err == nil {
		s.sum.Accepted++
		s.sum.RejectedPoints += r.rejected
	} else {
		s.sum.Refusals[status.Code(r.err).String()]++
	}
	if bad != nil {
		s.sum.BadHeaders++
	}
	if err := cmp.Or(r.err, bad); err != nil {
		s.sum.LastError = err.Error()
	}
	_ = s.latency.RecordValue(min(max(took.Microseconds(), leastMicros), mostMicros)) // within its bounds
}

// report is what was counted and what the nodes of a fleet know.
func (s *stats) report(f *Fleet) Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.sum
	r.Seconds = time.Since(s.begin).Seconds()
	r.Refusals, r.Skipped = maps.Clone(r.Refusals), maps.Clone(r.Skipped)
	at := func(q float64) float64 { return float64(s.latency.ValueAtQuantile(q)) / 1e6 }
	r.Latency = Latency{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
	for i := range f.cfg.Faults {
		x := &f.cfg.Faults[i]
		to := FaultReport{Share: x.Share, Kind: x.Kind, GPU: x.GPU, Severity: x.Severity, From: x.From.Seconds()}
		if x.Share == 0 {
			to.Node = f.cfg.NodeName(x.Node)
		}
		r.Faults = append(r.Faults, to)
	}
	for i := range f.nodes {
		f.nodes[i].report(&r, f.cfg.NodeName(i))
	}
	return r
}

func (n *node) report(r *Report, name string) {
	n.group.mu.Lock()
	defer n.group.mu.Unlock()
	if n.received.Threshold > 0 || n.received.All {
		r.NodesWithThreshold++
	}
	if r.FalseVerdicts += n.wrong; n.wrong > 0 && len(r.FalseNodes) < maxFalseNodes {
		r.FalseNodes = append(r.FalseNodes, name)
	}
	for _, t := range n.troubles {
		x := &r.Faults[t.fault]
		if x.Nodes++; t.found == 0 {
			continue
		}
		x.Found++
		if delay := (t.found - t.from).Seconds(); x.Delay == nil || delay > *x.Delay {
			x.Delay, x.By = &delay, t.by.String()
		}
	}
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-16s "+format+"\n", append([]any{name}, args...)...)
	}
	line("nodes", "%d, %d of them know a threshold", r.Nodes, r.NodesWithThreshold)
	line("time", "%.1f s", r.Seconds)
	line("pushes", "%d, %d accepted, %.1f per second", r.Pushes, r.Accepted, float64(r.Pushes)/max(r.Seconds, 1e-9))
	for _, code := range slices.Sorted(maps.Keys(r.Refusals)) {
		line("refused", "%d %s", r.Refusals[code], code)
	}
	if r.LastError != "" {
		line("last error", "%s", r.LastError)
	}
	line("skipped", "%d late, %d busy, %d asked to wait", r.Skipped[skipLate], r.Skipped[skipBusy], r.Skipped[skipAsked])
	if r.RejectedPoints > 0 {
		line("rejected", "%d points of accepted pushes", r.RejectedPoints)
	}
	line("bytes", "%d before compression, %.0f per push", r.Bytes, float64(r.Bytes)/float64(max(1, r.Pushes)))
	l := &r.Latency
	line("latency", "p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, max %.1f ms", 1e3*l.P50, 1e3*l.P90, 1e3*l.P99, 1e3*l.Max)
	if r.BadHeaders > 0 {
		line("bad headers", "%d answers", r.BadHeaders)
	}
	for i := range r.Faults {
		line("fault", "%s", r.Faults[i].text())
	}
	line("false verdicts", "%d %s", r.FalseVerdicts, strings.Join(r.FalseNodes, " "))
	_, err := io.WriteString(w, b.String())
	return err
}

func (x *FaultReport) text() string {
	target, outcome := x.Node, "was not found by the node"
	switch {
	case x.Share != 0 && x.Delay != nil:
		outcome = fmt.Sprintf("was found by %d of %d nodes, the last after %.0f s (%s)", x.Found, x.Nodes, *x.Delay, x.By)
	case x.Share != 0:
		outcome = fmt.Sprintf("was found by none of %d nodes", x.Nodes)
	case x.Delay != nil:
		outcome = fmt.Sprintf("was found by the node after %.0f s (%s)", *x.Delay, x.By)
	}
	if x.Share != 0 {
		target = (&fleetsim.Fault{Share: x.Share}).Target()
	}
	if x.GPU >= 0 {
		target += fmt.Sprintf(" gpu %d", x.GPU)
	}
	return fmt.Sprintf("%s: %s, from %.0f s, %s", target, x.Kind, x.From, outcome)
}
