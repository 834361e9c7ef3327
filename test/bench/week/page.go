// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The promise: a week of 1,000 nodes, and no false alert.
const (
	askedDays, askedNodes, askedSpeed = 6.99, 1000, 20

	maxFalse = 0
)

// sums of a result.
type sums struct {
	found, falseAlerts, silences, agents int
	delays, agentDelays                  []time.Duration
	nodeHours, skipped                   float64
	refused                              int64
}

func (r *result) sums() (s sums) {
	for i := range r.faults {
		o := &r.faults[i]
		if o.alert != nil {
			s.found++
			s.delays = append(s.delays, o.delay)
		}
		if o.agent >= 0 {
			s.agents++
			s.agentDelays = append(s.agentDelays, o.agent)
		}
	}
	for i := range r.alerts {
		if r.alerts[i].fault < 0 {
			s.falseAlerts++
			if r.alerts[i].silence {
				s.silences++
			}
		}
	}
	s.nodeHours = r.played.Hours() * float64(r.Nodes)
	for _, n := range r.fleet.Skipped {
		s.skipped += float64(n)
	}
	for _, n := range r.fleet.Refusals {
		s.refused += n
	}
	return s
}

func (r *result) print(w io.Writer) {
	s := r.sums()
	figure.Fprint(w, "week_days", r.played.Hours()/24, "d", askedDays, false)
	figure.Fprint(w, "week_nodes", float64(r.Nodes), "nodes", askedNodes, false)
	figure.Fprint(w, "week_speed", r.played.Seconds()/r.seconds, "x", askedSpeed, false)
	figure.FprintOnly(w, "week_failures_of_published_rate", r.Rate, "x")
	figure.FprintOnly(w, "week_faults", float64(len(r.faults)), "faults")
	figure.FprintOnly(w, "week_missed", float64(len(r.faults)-s.found), "faults")
	figure.FprintOnly(w, "week_alerts", float64(len(r.alerts)), "alerts")
	figure.Fprint(w, "week_false_alerts", float64(s.falseAlerts), "alerts", maxFalse, true)
	figure.FprintOnly(w, "week_false_alerts_of_silence", float64(s.silences), "alerts")
	figure.FprintOnly(w, "week_delay_p50", figure.Quantile(s.delays, 0.5).Seconds(), "s")
	figure.FprintOnly(w, "week_delay_p90", figure.Quantile(s.delays, 0.9).Seconds(), "s")
	figure.FprintOnly(w, "week_agents_found", float64(s.agents), "faults")
	figure.FprintOnly(w, "week_agents_delay_p50", figure.Quantile(s.agentDelays, 0.5).Seconds(), "s")
	figure.Fprint(w, "week_agents_false_verdicts", float64(r.fleet.FalseVerdicts), "verdicts", maxFalse, true)
	figure.FprintOnly(w, "week_restarts", float64(len(r.rolls)), "restarts")
	figure.FprintOnly(w, "week_reports", float64(r.fleet.Accepted), "reports")
	figure.FprintOnly(w, "week_reports_refused", float64(s.refused), "reports")
	figure.FprintOnly(w, "week_reports_skipped", s.skipped, "reports")
	for _, t := range []struct {
		name string
		*tier
	}{{"shard", &r.shard}, {"gateway", &r.gateway}} {
		figure.FprintOnly(w, "week_"+t.name+"_cpu", t.cpu/s.nodeHours, "s/node-hour")
		figure.FprintOnly(w, "week_"+t.name+"_rss_peak", t.peak/1e6, "MB")
	}
	figure.FprintOnly(w, "week_bytes_nodes_to_shard", float64(r.in)/1e3/s.nodeHours, "kB/node-hour")
	figure.FprintOnly(w, "week_bytes_shard_to_gateway", float64(r.out)/1e3/s.nodeHours, "kB/node-hour")
}

// document is the page. Its first lines say what was run: it is no week where it was none.
func (r *result) document() []byte {
	var b bytes.Buffer
	s := r.sums()
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# A fleet in fast time\n")
	line("<!-- Written by `make week`. Edit test/bench/week/page.go, not this file. -->\n")
	line("**What was run.** %d nodes of %d GPUs for %.2f days, at %.0f times the speed of time, %.1f minutes of the machine. Failures came at %g times the published rates per GPU-hour, from seed %d. `make week WEEK='-days 7 -nodes 1000 -speed 20'` is a week of 1,000 nodes; it takes 8.4 hours.\n",
		r.Nodes, r.GPUs, r.played.Hours()/24, r.played.Seconds()/r.seconds, r.seconds/60, r.Rate, r.Seed)
	line("**Setup.** `fleetsim` pushes to a shard, and the shard to a gateway, with `configs/shard.yaml` and `configs/gateway.yaml`. Their clocks run as fast: [scripts/fastclock.sh](../../scripts/fastclock.sh) builds the same sources with another runtime. Timers, deadlines and timestamps go by that clock. So a restart of half a second of the machine is %.0f s of the fleet's, and a push that waits for a core is late. Costs in CPU are those of the machine, per hour of the fleet.\n", 0.5*float64(r.speed))
	line("**Failures.** Hardware fails as in table 5 of [The Llama 3 Herd of Models](https://arxiv.org/abs/2407.21783): 419 interruptions in 54 days of 16,384 H100, %.0f of them of causes that `fleetsim` has a model for. Slow links and slow computing come by job, as [FALCON](https://arxiv.org/abs/2410.12588) counted them. The table below has the kinds; which kind stands for a cause is our judgement. A broken node is repaired after one to four hours. A node has one fault at a time.\n", modelled())
	line("**Alerts.** An alert is an episode of the gateway, or a lost, sick or silent part in the fleet view's list of [what needs a person](../api.md). It is true where a node that it names has a fault, or had it until 15 minutes before. The delay is from the beginning of the fault to the first alert about it. The last column of the first table is the node's own verdict.\n")
	line("No fault here silences a node, so an alert of silence is always false. Its node was late because the machine was, or a tier was away. Of %d reports %d were refused or timed out, and %.0f were skipped since a later one was due.\n", r.fleet.Pushes, s.refused, s.skipped)
	line("## Faults by cause\n")
	line("| Cause | Faults | Found | Delay p50 | Delay, longest | Found by the node |\n|---|---:|---:|---:|---:|---:|")
	for _, name := range causeNames() {
		n, found, agents := 0, 0, 0
		var delays []time.Duration
		for i := range r.faults {
			if o := &r.faults[i]; o.cause == name {
				n++
				if o.alert != nil {
					found++
					delays = append(delays, o.delay)
				}
				if o.agent >= 0 {
					agents++
				}
			}
		}
		if n > 0 {
			line("| %s | %d | %d | %s | %s | %d |", name, n, found, seconds(figure.Quantile(delays, 0.5), found > 0), seconds(figure.Quantile(delays, 1), found > 0), agents)
		}
	}
	line("\n## Every fault\n")
	line("| From | For | Node | Cause | Kind | First alert | Delay | By the node |\n|---|---|---|---|---|---|---:|---:|")
	for i := range r.faults {
		o := &r.faults[i]
		first := "**missed**"
		if o.alert != nil {
			first = o.alert.kind
		}
		line("| %s | %s | %d | %s | `%s` | %s | %s | %s |", o.From, o.Until-o.From, o.node, o.cause, strings.TrimSuffix(string(o.Kind)+" "+severity(o.Severity), " "),
			first, seconds(o.delay, o.alert != nil), seconds(o.agent, o.agent >= 0))
	}
	line("\n## Every alert\n")
	line("%d alerts, %d of them false, %d of these of silence, in %d looks at the gateway.\n", len(r.alerts), s.falseAlerts, s.silences, r.looks)
	line("| At | Alert | Reason | Nodes | About |\n|---|---|---|---|---|")
	for i := range r.alerts {
		a := &r.alerts[i]
		about := "**false**"
		if a.fault >= 0 {
			about = fmt.Sprintf("%s, node %d", r.faults[a.fault].cause, r.faults[a.fault].node)
		}
		line("| %s | %s | %s | %s | %s |", a.at.Round(time.Second), a.kind, a.reason, names(a.nodes), about)
	}
	line("\n## Restarts\n")
	line("| At | Tier | How |\n|---|---|---|")
	for _, x := range r.rolls {
		how := "stopped and started, as by an upgrade"
		if x.kill {
			how = "killed"
		}
		line("| %s | %s | %s |", x.at.Round(time.Second), x.tier, how)
	}
	return b.Bytes()
}

func severity(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g", v)
}

func seconds(d time.Duration, known bool) string {
	if !known {
		return ""
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// names are the first of a list.
func names(list []string) string {
	const most = 3
	var out []string
	for _, n := range list {
		if n != "" {
			out = append(out, n)
		}
	}
	if len(out) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(out[:most], " "), len(out)-most)
	}
	return strings.Join(out, " ")
}

func modelled() (n float64) {
	for _, c := range causes {
		n += c.count
	}
	return n
}

func causeNames() []string {
	var list []string
	for _, c := range causes {
		list = append(list, c.name)
	}
	return append(list, slowLink, slowComputer)
}
