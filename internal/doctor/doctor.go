// SPDX-License-Identifier: Apache-2.0

// Package doctor says what keeps a node or a gateway from telling of stragglers. This
// file is pure: it judges what the others gather.
package doctor // import "github.com/gpu-collector/gpu-collector/internal/doctor"

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// Status of a check.
type Status string

// The statuses. Only a Fail makes the command fail.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
	// Unknown checks could not be made, such as those of a gateway from a node without one.
	Unknown Status = "unknown"
)

// Check is one thing looked at.
type Check struct {
	Name   string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	// Advice is what to do, empty where nothing is to be done.
	Advice string `json:"advice,omitempty"`
}

// Facts are what was gathered.
type Facts struct {
	Version string // of this program
	Node    string // its name at the gateway
	Now     time.Time
	Host    Host
	// Collector is the process on this machine, nil where none answered; CollectorError
	// says why.
	Collector      *Collector
	CollectorError error
	// Gateway is nil where none answered.
	Gateway      *Gateway
	GatewayError error
	GatewayAt    string
	// Ports of the shipped configurations on this machine, and whether somebody listens.
	Ports []Port
}

// Host is what the kernel says.
type Host struct {
	// Driver is the version of NVIDIA's driver, empty while it is not loaded.
	Driver string
	// GPUs on the PCI bus; HandedOver are those of virtual machines besides.
	GPUs, HandedOver int
}

// Collector is what the process on this machine says of itself, at its own metrics.
type Collector struct {
	Name, Version string
	// Agent says that it reads GPUs, Gateway that it compares nodes.
	Agent, Gateway bool
	// Scraped are the points that the GPUs gave; Errored those that could not be read.
	Scraped, Errored float64
	// Sent and Failed are the points to the gateway, since the start.
	Sent, Failed float64
	// Answers of the gateway by outcome: new, unchanged, absent, invalid, unanswered.
	Answers map[string]float64
	// To is where it pushes, and NextHop what is found there; nil while pushes are taken.
	To      string
	NextHop *NextHop
}

// NextHop is what this machine finds at the address that the agent pushes to.
type NextHop struct {
	// Unresolved says why the name has no address, Unreachable why nobody answers there.
	Unresolved, Unreachable error
	// TLS is whether it speaks TLS.
	TLS bool
}

// Gateway is what the fleet view of a gateway says.
type Gateway struct {
	Status string
	// Skew is its clock less ours, from the Date of its answer.
	Skew time.Duration
	// Nodes that it knows.
	Nodes int
	// Node is this machine's, nil where it is not known there.
	Node *Node
	// Groups of peers.
	Groups []Group
	// Unjudged counts the nodes without a verdict, by reason. Nodes that tell nothing which
	// is compared have NoSignal.
	Unjudged map[string]int
}

// Node is a node as its gateway knows it.
type Node struct {
	Cluster, Group string
	Age            time.Duration
	GPUs, Lost     int
	HasThreshold   bool
	Mode           string
	Straggler      bool
	// Culprit names the rank or GPU that lags behind the others of its node, if one does.
	Culprit  string
	Unjudged string
	Until    time.Time
}

// Group is a group of peers.
type Group struct {
	Cluster, Name string
	// Calibrating nodes become active by themselves.
	Active, Calibrating int
	QuorumMet           bool
	// MinPeers are needed to judge any, 0 where the gateway does not say.
	MinPeers int
	// Detectable is the smallest loss in percent that is found now, 0 while none is.
	Detectable float64
}

// Port is one that the shipped configurations listen on.
type Port struct {
	Number int
	For    string
	Open   bool
}

// Diagnose judges the facts, in the order in which data flows.
func Diagnose(f *Facts) []Check {
	checks := []Check{f.driver(), f.gpus(), f.collector(), f.reads(), f.pushes(), f.threshold(), f.gateway(), f.clock()}
	checks = append(checks, f.node()...)
	checks = append(checks, f.silence(), f.ports())
	kept := checks[:0]
	for _, c := range checks {
		if c.Name != "" {
			kept = append(kept, c)
		}
	}
	return kept
}

// Failed reports whether one of the checks did.
func Failed(checks []Check) bool {
	for _, c := range checks {
		if c.Status == Fail {
			return true
		}
	}
	return false
}

// gateways reports whether this machine is one without GPUs of its own.
func (f *Facts) gateways() bool {
	return f.Collector != nil && f.Collector.Gateway && !f.Collector.Agent
}

func (f *Facts) driver() Check {
	c := Check{Name: "driver", Status: OK, Text: "NVIDIA's driver " + f.Host.Driver + " is loaded"}
	switch {
	case f.Host.Driver != "":
	case f.Host.GPUs > 0:
		c.Status, c.Text = Fail, "NVIDIA's driver is not loaded"
		c.Advice = "load it: nvidia-smi says what keeps it from loading"
	case f.gateways():
		return Check{}
	default:
		c.Status, c.Text = Unknown, "no driver and no NVIDIA GPU on the PCI bus"
		c.Advice = "run the command on a GPU node, or give the gateway's address with --endpoint"
	}
	return c
}

func (f *Facts) gpus() Check {
	if f.Host.GPUs == 0 {
		return Check{}
	}
	c := Check{Name: "gpus", Status: OK, Text: count(f.Host.GPUs, "GPU") + " on the PCI bus"}
	if f.Host.HandedOver > 0 {
		c.Text += fmt.Sprintf(", %d more handed to virtual machines", f.Host.HandedOver)
	}
	if f.Gateway == nil || f.Gateway.Node == nil {
		return c
	}
	n := f.Gateway.Node
	c.Text += fmt.Sprintf(", %d told to the gateway", n.GPUs)
	switch {
	case n.Lost > 0:
		c.Status, c.Text = Fail, c.Text+fmt.Sprintf(", %d lost", n.Lost)
		c.Advice = "the page names the lost GPU; drain the node and reboot it"
	case n.GPUs < f.Host.GPUs:
		c.Status = Warn
		c.Advice = "the agent sees fewer GPUs than the bus: its log says why"
	}
	return c
}

func (f *Facts) collector() Check {
	c := Check{Name: "collector", Status: OK}
	if f.Collector == nil {
		c.Status = Warn
		c.Text = fmt.Sprintf("no collector answers on this machine: %v", f.CollectorError)
		c.Advice = "start it, or give the address of its own metrics with --telemetry"
		return c
	}
	c.Text = strings.TrimSpace(f.Collector.Name + " " + f.Collector.Version + " runs")
	if f.Version != "" && f.Collector.Version != f.Version {
		c.Status, c.Text = Warn, c.Text+", and this program is "+f.Version
		c.Advice = "restart the collector if it was upgraded"
	}
	return c
}

func (f *Facts) reads() Check {
	if f.Collector == nil || !f.Collector.Agent {
		return Check{}
	}
	c := Check{Name: "readings", Status: OK, Text: "the agent reads the GPUs"}
	switch l := f.Collector; {
	case l.Scraped == 0:
		c.Status, c.Text = Fail, "the agent has read nothing of a GPU"
		c.Advice = "its log says why; in a container it needs the driver's library and /dev/nvidia*"
	case l.Errored > l.Scraped/10:
		c.Status, c.Text = Warn, fmt.Sprintf("%.0f of %.0f points could not be read", l.Errored, l.Errored+l.Scraped)
		c.Advice = "otelcol_receiver_nvml_call_failures names the calls"
	}
	return c
}

func (f *Facts) pushes() Check {
	if f.Collector == nil || f.Collector.To == "" {
		return Check{}
	}
	l := f.Collector
	c := Check{Name: "pushes", Status: OK, Text: "the gateway " + l.To + " takes the pushes"}
	switch {
	case l.Sent == 0 && l.NextHop != nil && l.NextHop.Unresolved != nil:
		c.Status, c.Text = Fail, fmt.Sprintf("the name of the gateway %s has no address here: %v", l.To, l.NextHop.Unresolved)
		c.Advice = "correct GPU_COLLECTOR_GATEWAY (host:port), or the DNS of this machine"
	case l.Sent == 0 && l.NextHop != nil && l.NextHop.Unreachable != nil:
		c.Status, c.Text = Fail, fmt.Sprintf("nobody answers at the gateway %s: %v", l.To, l.NextHop.Unreachable)
		c.Advice = "see whether the gateway runs, and whether the network lets this machine reach that port"
	case l.Sent == 0 && l.Failed == 0:
		c.Status, c.Text = Warn, "nothing was pushed to "+l.To+" yet"
		c.Advice = "the first push comes 10 s after the start"
	case l.Sent == 0 && l.NextHop != nil && !l.NextHop.TLS:
		c.Status, c.Text = Fail, "the gateway "+l.To+" speaks no TLS, and no push to it was ever taken"
		c.Advice = "set GPU_COLLECTOR_INSECURE=true for the agent, or give the gateway `tls`"
	case l.Sent == 0 && l.NextHop != nil:
		c.Status, c.Text = Fail, "the gateway "+l.To+" speaks TLS, and no push to it was ever taken"
		c.Advice = "leave GPU_COLLECTOR_INSECURE away, and check `ca_file` and the credentials: the agent's log says why"
	case l.Sent == 0:
		c.Status, c.Text = Fail, "no push to "+l.To+" was ever taken"
		c.Advice = "check GPU_COLLECTOR_GATEWAY, the network, and TLS (GPU_COLLECTOR_INSECURE=true for a gateway without it)"
	case l.Failed > l.Sent:
		c.Status, c.Text = Warn, "more pushes to "+l.To+" failed than were taken"
		c.Advice = "the agent's log says why"
	}
	return c
}

func (f *Facts) threshold() Check {
	if f.Collector == nil || f.Collector.Answers == nil || f.Collector.To == "" {
		return Check{}
	}
	a := f.Collector.Answers
	c := Check{Name: "threshold", Status: OK, Text: "answers carry the thresholds"}
	switch {
	case a["new"]+a["unchanged"] > 0:
	case a["invalid"] > 0:
		c.Status, c.Text = Fail, "the gateway's answers carry thresholds that cannot be read"
		c.Advice = "the gateway is of another version: upgrade both"
	case a["absent"] > 0:
		c.Status, c.Text = Warn, "the gateway answers, without a threshold"
		c.Advice = "it has one once enough peers are active; see `silence`"
	default:
		c.Status, c.Text = Fail, "no push was answered, so no threshold came"
		c.Advice = "see `pushes`"
	}
	return c
}

func (f *Facts) gateway() Check {
	if f.Gateway == nil {
		c := Check{Name: "gateway", Status: Unknown, Text: fmt.Sprintf("the fleet view at %s does not answer: %v", f.GatewayAt, f.GatewayError)}
		c.Advice = "give its address with --endpoint: the rest is known there"
		return c
	}
	c := Check{Name: "gateway", Status: OK, Text: fmt.Sprintf("the fleet view at %s knows %s", f.GatewayAt, count(f.Gateway.Nodes, "node"))}
	switch {
	case f.Gateway.Status != "" && f.Gateway.Status != "ok":
		c.Status, c.Text = Warn, c.Text+", and says that it is "+f.Gateway.Status
		c.Advice = "its page says why"
	case f.Gateway.Nodes == 0:
		c.Status = Warn
		c.Advice = "point agents at it: GPU_COLLECTOR_GATEWAY=HOST:4317"
	}
	return c
}

// maxSkew is a tenth of the shipped push interval: a verdict's times are off by no more.
const maxSkew = 2 * time.Second

func (f *Facts) clock() Check {
	if f.Gateway == nil {
		return Check{}
	}
	c := Check{Name: "clock", Status: OK, Text: "the clocks of this machine and of the gateway agree"}
	if skew := f.Gateway.Skew.Abs(); skew > maxSkew {
		c.Status, c.Text = Warn, fmt.Sprintf("the clocks of this machine and of the gateway are %s apart", skew.Round(time.Second))
		c.Advice = "run an NTP client on both"
	}
	return c
}

// stale is three shipped push intervals.
const stale = 30 * time.Second

func (f *Facts) node() []Check {
	if f.Gateway == nil || f.gateways() {
		return nil
	}
	n := f.Gateway.Node
	if n == nil {
		c := Check{Name: "node", Status: Warn, Text: fmt.Sprintf("the gateway does not know a node %q", f.Node)}
		c.Advice = "--node gives another name; a pod's name is not its node's"
		if f.Collector != nil && f.Collector.To != "" && f.Collector.Sent == 0 {
			c.Advice = "see `pushes`"
		}
		if f.Host.GPUs == 0 && f.Collector == nil {
			return nil
		}
		return []Check{c}
	}
	c := Check{Name: "node", Status: OK, Text: fmt.Sprintf("the gateway heard of %s %s ago", f.Node, n.Age.Round(time.Second))}
	if n.Age > stale {
		c.Status, c.Advice = Fail, "see `pushes`"
	}
	v := Check{Name: "verdict", Status: OK, Text: "the node is no straggler"}
	switch {
	case n.Straggler:
		v.Status, v.Text, v.Advice = Warn, "the node is a straggler", "the page says why, and what to do"
	case n.Unjudged != "":
		v.Status, v.Text = Warn, "there is no verdict on the node, since "+because(n.Unjudged)
		if !n.Until.IsZero() {
			v.Text += " until " + n.Until.UTC().Format(time.RFC3339)
		}
		v.Advice = unjudged.Parse(n.Unjudged).Remedy()
	}
	checks := []Check{c, f.peers(n), v}
	if n.Culprit != "" {
		checks = append(checks, Check{
			Name: "ranks", Status: Warn, Text: n.Culprit + " works for longer than the others of this node",
			Advice: "look at its GPU, its CPU cores and its input; gpu.app.step.own_duration has the time of each rank",
		})
	}
	return checks
}

// defaultMinPeers is the gateway's `min_peers` where it does not tell it, as one of an older
// version does not.
const defaultMinPeers = 3

func (f *Facts) peers(n *Node) Check {
	for _, g := range f.Gateway.Groups {
		if g.Cluster != n.Cluster || g.Name != n.Group {
			continue
		}
		minPeers := cmp.Or(g.MinPeers, defaultMinPeers)
		c := Check{Name: "peers", Status: OK, Text: fmt.Sprintf("%s in group %s, at least %d are needed", count(g.Active, "active node"), g.Name, minPeers)}
		if g.Active >= minPeers || g.QuorumMet {
			return c
		}
		c.Status, c.Advice = Warn, unjudged.FewPeers.Remedy()
		if g.Calibrating > 0 {
			c.Text += fmt.Sprintf("; calibrating: %d", g.Calibrating)
		}
		if g.Active+g.Calibrating >= minPeers {
			c.Advice = unjudged.Calibrating.Remedy()
		}
		return c
	}
	c := Check{Name: "peers", Status: Warn, Text: "the node has no group of peers yet", Advice: unjudged.FewPeers.Remedy()}
	if n.Unjudged == unjudged.NoSignal.String() {
		c.Advice = unjudged.NoSignal.Remedy()
	}
	return c
}

func (f *Facts) silence() Check {
	if f.Gateway == nil || f.Gateway.Nodes == 0 {
		return Check{}
	}
	total, most, reason := 0, 0, ""
	for why, n := range f.Gateway.Unjudged {
		total += n
		if n > most || n == most && why < reason {
			most, reason = n, why
		}
	}
	if total == 0 {
		return Check{Name: "silence", Status: OK, Text: "every node of the fleet is judged"}
	}
	c := Check{Name: "silence", Status: OK, Text: unjudged.Parse(reason).Silence(most, f.Gateway.Nodes)}
	if c.Text == "" { // a reason of a newer gateway
		c.Text = fmt.Sprintf("%d of %s without a verdict, since %s", most, count(f.Gateway.Nodes, "node"), reason)
	}
	if total > most {
		c.Text += fmt.Sprintf("; %d more for other reasons", total-most)
	}
	if 2*total > f.Gateway.Nodes {
		c.Status, c.Advice = Warn, unjudged.Parse(reason).Remedy()
	}
	return c
}

func (f *Facts) ports() Check {
	var open []string
	for _, p := range f.Ports {
		if p.Open {
			open = append(open, fmt.Sprintf("%d (%s)", p.Number, p.For))
		}
	}
	if len(open) == 0 {
		return Check{Name: "ports", Status: OK, Text: "nobody listens on the shipped configurations' ports"}
	}
	return Check{Name: "ports", Status: OK, Text: "somebody listens on " + strings.Join(open, ", ")}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// because also passes on a reason of a newer gateway.
func because(reason string) string {
	if why := unjudged.Parse(reason).Why(); why != "" {
		return why
	}
	return reason
}
