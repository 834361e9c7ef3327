// SPDX-License-Identifier: Apache-2.0

// Package check says what is wrong with a node, and with its way to a gateway, for the
// command `check`. It judges facts that others gather.
package check // import "github.com/gpu-collector/gpu-collector/internal/check"

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

// Status of a check.
type Status string

// The statuses. Only Fail makes the command fail.
const (
	OK      Status = "ok"
	Warn    Status = "warn"
	Fail    Status = "fail"
	Unknown Status = "unknown"
)

// Finding is what one check found.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	// Next is what to do, empty where nothing is to be done.
	Next string `json:"next,omitempty"`
}

// Facts are what was gathered. What is nil was not asked for.
type Facts struct {
	// Configuration says why it cannot be used; the other facts are then absent.
	Configuration error
	GPUs          *GPUs
	Clock         *Clock
	Ports         []Port
	Gateway       *Gateway
}

// GPUs are those of the node, as the nvml receiver reports them.
type GPUs struct {
	// Absent: the configuration has no receiver that reads them. Late: NVML has not
	// answered within Waited.
	Absent, Late bool
	Waited       time.Duration
	// Trouble is what the receiver says of NVML, Silent whom it waits for. NoLibrary: there is
	// no NVML to ask.
	Trouble   string
	NoLibrary bool
	Silent    []string
	// Unread says why what the agent remembers of GPUs could not be read.
	Unread          string
	Driver          string
	Expected, Found int
	List            []GPU // whole ones
}

// GPU is one of them.
type GPU struct {
	UUID, PCIBusID string
	Index          int
	// Down is why it does not answer, empty where it does.
	Down string
	// Health is a state of the rubric. Reasons hold it down, each with its action.
	Health  string
	Reasons []Reason
	// Throttle are the reasons that hold its clock down.
	Throttle           []string
	LinksUp, LinksDown int
	Width, WidthMax    int // PCIe lanes
	Generation         int // of PCIe
}

// Reason is one of a GPU's health.
type Reason struct{ Name, Action string }

// Clock is the node's.
type Clock struct{ Known, Synchronised bool }

// Port is an address that the configuration listens on.
type Port struct {
	Key, Address string
	// Free: it could be listened on. Else Error says why not, and Holder names the process
	// that does, where it is seen. Own is a collector.
	Free, Held, Own bool
	Holder, Error   string
}

// Gateway is the next hop, and its answer to an empty push.
type Gateway struct {
	// Absent: no exporter of the configuration asks for thresholds.
	Absent                   bool
	Exporter, Endpoint, Node string
	Failure                  Failure
	Error                    string
	Answer                   threshold.Answer
	// Skew is its clock less the node's, where it told it.
	Skew time.Duration
	// Threshold is of the node's group, else of its cluster; nil where none came.
	Threshold *threshold.Received
}

// Failure is the layer at which a push failed.
type Failure int

// The failures.
const (
	None Failure = iota
	NoAddress
	NobodyAnswers
	NoTLS     // they speak none
	TLSWanted // they speak it, and the exporter does not
	Certificate
	Unauthenticated
	Denied
	Busy
	NoOTLP
	Slow
	Other
)

var failures = [...]struct{ text, next string }{
	NoAddress:       {"the name has no address", "Correct GPU_COLLECTOR_GATEWAY (`endpoint` of the exporter), or this node's DNS."},
	NobodyAnswers:   {"nobody answers at that port", "See whether the gateway runs, and whether a firewall or network policy lets this node reach it."},
	NoTLS:           {"it speaks no TLS, and the agent does", "Set GPU_COLLECTOR_INSECURE=true (`tls::insecure`) for the agent, or give the gateway's receiver `tls`."},
	TLSWanted:       {"it speaks TLS, and the agent does not", "Set GPU_COLLECTOR_INSECURE=false for the agent, and `tls::ca_file` where its authority is your own."},
	Certificate:     {"TLS fails", "Compare `tls` of the exporter (ca_file, cert_file, server_name_override) with the gateway's certificate."},
	Unauthenticated: {"it does not accept who the agent is", "Check the exporter's `auth` or `headers`: password or token."},
	Denied:          {"it knows the agent, and refuses it", "Cluster and node have to be those of the credentials."},
	Busy:            {"it refuses pushes now", "Its log and `/api/v1/health` say why: memory, permits, or a start."},
	NoOTLP:          {"who answers takes no OTLP metrics", "Point GPU_COLLECTOR_GATEWAY at the gateway's OTLP port: 4317 for gRPC, 4318 for HTTP."},
	Slow:            {"it took the connection and gave no answer in time", "Look at the gateway's load; `--timeout` waits for longer."},
	Other:           {"the push failed", "The error is the exporter's own."},
}

// Findings judges the facts, in the order in which data flows.
func Findings(f *Facts) []Finding {
	if f.Configuration != nil {
		return []Finding{{configuration, Fail, f.Configuration.Error(), "`validate` says the same."}}
	}
	var all []Finding
	if f.GPUs != nil {
		all = append(all, f.GPUs.findings()...)
	}
	if f.Clock != nil {
		all = append(all, f.clock())
	}
	all = append(all, ports(f.Ports)...)
	if f.Gateway != nil {
		all = append(all, f.Gateway.findings()...)
	}
	return all
}

const configuration = "configuration"

// Exit is the command's status: 1 where a check failed, 2 where nothing could be checked.
func Exit(all []Finding) int {
	is := func(s Status) func(Finding) bool { return func(f Finding) bool { return f.Status == s } }
	switch {
	case !slices.ContainsFunc(all, func(f Finding) bool { return f.Status != Unknown && f.Check != configuration }):
		return 2
	case slices.ContainsFunc(all, is(Fail)):
		return 1
	}
	return 0
}

// Text is for people: a line for each check, and below it what to do.
func Text(all []Finding) string {
	var b strings.Builder
	wrong := map[Status][]string{}
	for _, f := range all {
		fmt.Fprintf(&b, "%-7s  %-13s  %s\n", f.Status, f.Check, f.Text)
		if f.Next != "" {
			fmt.Fprintf(&b, "%26s%s\n", "-> ", f.Next)
		}
		if !slices.Contains(wrong[f.Status], f.Check) {
			wrong[f.Status] = append(wrong[f.Status], f.Check)
		}
	}
	switch {
	case Exit(all) == 2:
		b.WriteString("Nothing could be checked.\n")
	case len(wrong[Fail]) > 0:
		fmt.Fprintf(&b, "Wrong: %s.\n", strings.Join(wrong[Fail], ", "))
	case len(wrong[Warn])+len(wrong[Unknown]) > 0:
		fmt.Fprintf(&b, "Nothing is wrong. Look at: %s.\n", strings.Join(append(wrong[Warn], wrong[Unknown]...), ", "))
	default:
		b.WriteString("All is well.\n")
	}
	return b.String()
}

const slowOrBroken = "Look at the kernel's log (dmesg). Without persistence mode the first contact takes long: try --timeout 60s."

func (g *GPUs) findings() []Finding {
	switch {
	case g.Absent:
		return []Finding{{"driver", Unknown, "The configuration has no nvml receiver.", "Give the agent's with --config."}}
	case g.Late:
		return []Finding{{
			"driver", Fail, fmt.Sprintf("NVML has not answered within %v.", g.Waited.Round(time.Millisecond)),
			slowOrBroken,
		}}
	case g.Expected == 0 && len(g.List) == 0 && (g.NoLibrary || g.Trouble == ""):
		return []Finding{{
			"driver", Unknown, strings.TrimSpace("No NVIDIA GPU is seen. " + g.Trouble),
			"Run it on a GPU node; a container needs the driver's library and the host's /sys.",
		}}
	case g.Trouble != "":
		all := []Finding{{"driver", Fail, g.Trouble, slowOrBroken}}
		if g.Expected > 0 {
			all = append(all, g.count())
		}
		return all
	}
	all := []Finding{{"driver", OK, "NVIDIA's driver " + g.Driver + " answers.", ""}, g.count()}
	all = append(all, g.health()...)
	return append(all, g.links(), g.throttling())
}

func (g *GPUs) count() Finding {
	f := Finding{"gpus", OK, fmt.Sprintf("%d of %d GPUs answer.", g.Found, g.Expected), ""}
	if g.Found < g.Expected {
		f.Status, f.Next = Fail, reason.Advice("gpu_lost", "")
	}
	for i := range g.List {
		if d := &g.List[i]; d.Down != "" {
			f.Text += " " + d.name() + ": " + d.Down + "."
		}
	}
	if len(g.Silent) > 0 {
		f.Text += " Not heard of: " + strings.Join(g.Silent, "; ") + "."
	}
	if g.Unread != "" {
		f.Text += " Nobody knows of GPUs lost earlier: " + g.Unread + "."
		if f.Status == OK {
			f.Status, f.Next = Warn, "Run it as root, or as the agent's user."
		}
	}
	return f
}

// name is for people: the index, and where the board is.
func (d *GPU) name() string {
	return fmt.Sprintf("GPU %d (%s)", d.Index, cmp.Or(d.PCIBusID, d.UUID))
}

func (g *GPUs) health() []Finding {
	var all []Finding
	for i := range g.List {
		d := &g.List[i]
		if d.Down != "" || d.Health == string(gpuhealth.StateHealthy) {
			continue
		}
		f := Finding{Check: "health", Status: Warn}
		if d.Health == string(gpuhealth.StateUnhealthy) {
			f.Status = Fail
		}
		var names []string
		worst := gpuhealth.ActionNone
		for _, r := range d.Reasons {
			names = append(names, r.Name)
			if a := gpuhealth.Action(r.Action); slices.Index(gpuhealth.Actions, a) > slices.Index(gpuhealth.Actions, worst) {
				worst = a
			}
		}
		f.Text, f.Next = d.name()+" is "+cmp.Or(d.Health, string(gpuhealth.StateUnknown)), worst.Advice()
		if len(names) > 0 {
			f.Text += ": " + strings.Join(names, ", ")
		}
		f.Text += "."
		all = append(all, f)
	}
	if len(all) == 0 {
		all = []Finding{{"health", OK, "Every GPU that answers is healthy.", ""}}
	}
	return all
}

// links only shows: the rubric judges them.
func (g *GPUs) links() Finding {
	f := Finding{Check: "links", Status: OK}
	kinds := map[string][]string{}
	var order []string
	for i := range g.List {
		d := &g.List[i]
		if d.Down != "" {
			continue
		}
		var kind []string
		if d.Width > 0 {
			kind = append(kind, fmt.Sprintf("PCIe x%d of x%d", d.Width, max(d.Width, d.WidthMax)))
			if d.Generation > 0 {
				kind = append(kind, fmt.Sprintf("generation %d now", d.Generation))
			}
		}
		if n := d.LinksUp + d.LinksDown; n > 0 {
			kind = append(kind, fmt.Sprintf("%d of %d NVLinks up", d.LinksUp, n))
		}
		if d.LinksDown > 0 || d.Width < d.WidthMax {
			f.Status, f.Next = Warn, "`health` says whether it counts; nvidia-smi topo -m and nvlink -s show the links."
		}
		k := cmp.Or(strings.Join(kind, ", "), "no link is told")
		if kinds[k] == nil {
			order = append(order, k)
		}
		kinds[k] = append(kinds[k], strconv.Itoa(d.Index))
	}
	for _, k := range order {
		f.Text += "GPU " + strings.Join(kinds[k], ", ") + ": " + k + ". "
	}
	f.Text = cmp.Or(strings.TrimSpace(f.Text), "No GPU tells its links.")
	return f
}

func (g *GPUs) throttling() Finding {
	f := Finding{"throttling", OK, "No clock is held down.", ""}
	var held []string
	for i := range g.List {
		d := &g.List[i]
		if len(d.Throttle) == 0 {
			continue
		}
		held = append(held, d.name()+": "+strings.Join(d.Throttle, ", "))
		for _, r := range d.Throttle {
			if r != "power_cap" && r != "sync_boost" && r != "app_clocks" && r != "display_clocks" { // as set, or the load's own
				f.Status, f.Next = Warn, "Look at cooling (thermal), or at the power supply (power_brake, hw_slowdown)."
			}
		}
	}
	if len(held) > 0 {
		f.Text = "Clocks are held down. " + strings.Join(held, "; ") + "."
	}
	return f
}

// maxSkew is a fifth of the shipped push interval: a verdict's times are off by no more.
const maxSkew = 2 * time.Second

func (f *Facts) clock() Finding {
	c := Finding{"clock", Unknown, "The kernel does not tell whether the clock is synchronised.", ""}
	switch {
	case !f.Clock.Known:
	case f.Clock.Synchronised:
		c.Status, c.Text = OK, "The clock is synchronised."
	default:
		c.Status, c.Text, c.Next = Warn, "Nobody synchronises the clock.", "Run chronyd, ntpd or systemd-timesyncd."
	}
	g := f.Gateway
	switch {
	case g == nil:
	case g.Answer.Standing == nil || g.Answer.Standing.Node == "":
		c.Text += " The gateway's clock is not told."
	case g.Skew.Abs() > maxSkew:
		c.Status, c.Next = Warn, "Synchronise both: the times of verdicts are wrong."
		c.Text += fmt.Sprintf(" It is %v off the gateway's.", g.Skew.Abs().Round(100*time.Millisecond))
	default:
		c.Text += fmt.Sprintf(" It is within %v of the gateway's.", maxSkew)
	}
	return c
}

func ports(all []Port) []Finding {
	var found []Finding
	var free, own []string
	for i := range all {
		p := &all[i]
		f := Finding{"ports", Fail, "", "Stop it, or change `" + p.Key + "`."}
		switch {
		case p.Free:
			free = append(free, p.Address)
			continue
		case p.Held && p.Own:
			own = append(own, p.Address)
			continue
		case !p.Held:
			f.Text, f.Next = fmt.Sprintf("The agent cannot listen on %s: %s.", p.Address, p.Error), "Change `"+p.Key+"`."
		case p.Holder == "":
			f.Status, f.Text, f.Next = Unknown, p.Address+" is taken, and this user cannot see by whom.", "Run it as root: a collector is fine."
		default:
			f.Text = p.Address + " is taken by " + p.Holder + "."
		}
		found = append(found, f)
	}
	if len(free)+len(own) > 0 {
		f := Finding{Check: "ports", Status: OK}
		if len(own) > 0 {
			f.Text = "A collector listens on " + strings.Join(own, ", ") + ". "
		}
		if len(free) > 0 {
			f.Text += "Free: " + strings.Join(free, ", ") + "."
		}
		f.Text = strings.TrimSpace(f.Text)
		found = append([]Finding{f}, found...)
	}
	return found
}

func (g *Gateway) findings() []Finding {
	if g.Absent {
		return []Finding{{"gateway", Unknown, "No exporter of the configuration has the middleware `straggler_threshold`.", "Add it, as in configs/agent.yaml: thresholds come with the answers."}}
	}
	if g.Failure != None {
		say := failures[g.Failure]
		return []Finding{{"gateway", Fail, fmt.Sprintf("The gateway %s (`%s`) does not take a push: %s. %s", g.Endpoint, g.Exporter, say.text, g.Error), say.next}}
	}
	all := []Finding{{"gateway", OK, "The gateway " + g.Endpoint + " takes pushes.", ""}}
	s := g.Answer.Standing
	switch {
	case !g.Answer.Epoch:
		return append(all, Finding{"threshold", Warn, "Who answers is no gateway of thresholds.", "Give its OTLP receiver the middleware `straggler_threshold`."})
	case g.Threshold != nil && g.Threshold.QuorumMet:
		all = append(all, Finding{"threshold", OK, fmt.Sprintf("A threshold comes back: %.3g for %s.", g.Threshold.Threshold, cmp.Or(g.Threshold.Group, "the whole cluster")), ""})
	default:
		all = append(all, Finding{"threshold", Warn, "The answer has no threshold with a quorum.", "It comes once enough peers work: see `peers`."})
	}
	switch {
	case s == nil:
		return append(all, Finding{"peers", Unknown, "The next hop does not tell them: it is a shard, or a gateway that has just started.", "Ask the gateway: /api/v1/nodes/" + g.Node + "."})
	case s.Node == "":
		return append(all, Finding{"peers", Warn, "The gateway does not know a node " + g.Node + ".", "Start the agent; it is known after its first push. Cluster and name have to be the agent's."})
	}
	peers := Finding{"peers", OK, fmt.Sprintf("%d peers work in group %s, %d are needed.", s.Active, s.Group, s.Needed), ""}
	if s.Active < s.Needed {
		peers.Text = fmt.Sprintf("%d of %d peers: so many nodes work in group %s, this one included.", s.Active, s.Needed, s.Group)
		peers.Status, peers.Next = Warn, "Compare more nodes: `group_by` makes the groups."
	}
	verdict := Finding{"verdict", OK, "The node is compared, and is no straggler.", ""}
	switch {
	case s.Why == unjudged.Idle || s.Why == unjudged.Calibrating:
		verdict.Text = "There is no verdict: " + s.Why.String() + ". " + s.Why.Sentence()
	case s.Why != unjudged.Judged:
		verdict.Status, verdict.Text, verdict.Next = Warn, "There is no verdict: "+s.Why.String()+". "+s.Why.Sentence(), "docs/troubleshooting.md has a row for `"+s.Why.String()+"`."
	case g.Threshold != nil:
		if v, straggler, _ := g.Threshold.Of(g.Node); straggler {
			verdict.Status = Warn
			verdict.Text, verdict.Next = fmt.Sprintf("The node is a straggler: %.1f %% behind its peers in %s.", 100*v.Loss, v.Signal), "The gateway's page says why."
		}
	}
	return append(all, peers, verdict)
}
