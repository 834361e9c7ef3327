// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// detailLines are all lines of the selected node.
func (m Model) detailLines() []string {
	if m.fleet == nil {
		return nil
	}
	n := m.fleet.Detail
	if n == nil || n.Node != m.detail.Node || n.Cluster != m.detail.Cluster {
		if m.loading {
			return []string{"asking for " + printable(m.detail.Node) + " ..."}
		}
		return []string{printable(m.detail.Node) + " is not known any more"}
	}
	lines := []string{m.paint(bold, printable(n.Node)) + fmt.Sprintf("  cluster %s  group %s", printable(n.Cluster), printable(or(n.Group, "-")))}
	if trouble := m.troubleLines(n); len(trouble) > 0 { // the advice comes before the figures
		lines = append(append(lines, trouble...), "")
	}
	lines = append(lines,
		fmt.Sprintf("state %s   health %s   last seen %s ago", printable(string(or(n.State, "unknown"))), m.paint(styles[string(n.Health)], string(n.Health)), age(m.nodeAge(n))),
		fmt.Sprintf("suspicion %s   score %s   threshold %s   judges itself by: %s", number(n.Suspicion, "%.2f"), number(n.Score, "%.3f"), number(n.AgentThreshold, "%.3f"), printable(string(or(n.DetectionMode, "-")))),
	)
	if n.UnjudgedText != nil {
		lines = append(lines, "not judged: "+printable(*n.UnjudgedText))
	}
	lines = append(lines, m.evidenceLines(n)...)
	if len(n.Signals) > 0 {
		lines = append(lines, "", m.paint(bold, fmt.Sprintf("%-16s %12s %12s", "SIGNAL", "VALUE", "PEERS")))
		for _, s := range n.Signals {
			lines = append(lines, fmt.Sprintf("%-16s %12.4g %12s", printable(s.Signal), s.Value, number(s.Median, "%.4g")))
		}
	}
	if n.Gpus != nil && len(*n.Gpus) > 0 {
		lines = append(lines, "", m.paint(bold, fmt.Sprintf("%3s %-9s %5s %5s %6s %5s %5s %5s  %s", "GPU", "HEALTH", "SCORE", "TEMP", "POWER", "USED", "MEM", "MHZ", "WHY")))
		for i := range *n.Gpus {
			lines = append(lines, m.gpuLine(&(*n.Gpus)[i]))
		}
		lines = append(lines, m.holderLines(*n.Gpus)...)
	}
	return lines
}

// evidenceLines are the facts of a node's open episode.
func (m Model) evidenceLines(n *fleetclient.Node) (lines []string) {
	for i := range m.fleet.Episodes {
		e := &m.fleet.Episodes[i]
		if e.Cluster != n.Cluster || or(e.Node, "") != n.Node || e.Evidence == nil {
			continue
		}
		lines = append(lines, "", m.paint(bold, fmt.Sprintf("%-28s %12s %12s  %s", "EVIDENCE", "VALUE", "PEERS", "GPU")))
		for _, v := range *e.Evidence {
			lines = append(lines, fmt.Sprintf("%-28s %12s %12s  %s", printable(v.Fact), number(v.Value, "%.4g"), number(v.Peers, "%.4g"), gpuOf(n, or(v.GPU, ""))))
		}
	}
	return lines
}

// gpuOf names a GPU of a node by its index, or another device by its name.
func gpuOf(n *fleetclient.Node, id string) string {
	for _, g := range or(n.Gpus, nil) {
		if g.UUID == id {
			return "GPU " + gpuName(&g)
		}
	}
	if strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") {
		return "a GPU"
	}
	return printable(id)
}

func (m Model) gpuLine(g *fleetclient.GPU) string {
	var why []string
	if g.Up != nil && !*g.Up {
		text := "does not answer: " + or(g.UpReason, "")
		if g.DownSince != nil {
			text += ", last seen " + age(m.fleet.At.Sub(*g.DownSince)) + " ago"
		}
		why = append(why, text)
	}
	for _, r := range g.Reasons {
		why = append(why, r.Reason+" ("+or(r.Action, "")+")")
	}
	why = append(why, g.ThrottleReasons...)
	for _, x := range g.Xids {
		why = append(why, fmt.Sprintf("Xid %d x%d", x.Code, x.Count))
	}
	memory := "-"
	if limit := or(g.MemoryLimitBytes, 0); limit > 0 {
		memory = scaled(g.MemoryUsedBytes, 100/limit, "%.0f%%")
	}
	return fmt.Sprintf("%3s %s %5s %5s %6s %5s %5s %5s  %s", gpuName(g), m.paint(styles[string(g.Health)], fmt.Sprintf("%-9s", string(g.Health))),
		number(g.HealthScore, "%.0f"), number(g.TemperatureCelsius, "%.0f"), number(g.PowerWatts, "%.0f"), percent(g.Utilization), memory, scaled(g.SmClockHertz, 1e-6, "%.0f"), printable(strings.Join(why, ", ")))
}

// holderLines are the jobs and containers of a node, each with its GPUs.
func (m Model) holderLines(gpus []fleetclient.GPU) (lines []string) {
	var holders []string
	held := map[string]string{}
	for i := range gpus {
		g := &gpus[i]
		if g.Allocations == nil {
			continue
		}
		for _, a := range *g.Allocations {
			h := reading.Holder{Job: or(a.Job, ""), Namespace: or(a.Namespace, ""), Pod: or(a.Pod, ""), Container: or(a.Container, "")}.String()
			if held[h] == "" {
				holders = append(holders, h)
			}
			held[h] += " " + gpuName(g)
		}
	}
	if len(holders) > 0 {
		lines = append(lines, "", m.paint(bold, fmt.Sprintf("%-50s GPU", "HELD BY")))
	}
	for _, h := range holders {
		lines = append(lines, fmt.Sprintf("%-50s%s", printable(h), held[h]))
	}
	return lines
}

func gpuName(g *fleetclient.GPU) string {
	if g.Index == nil {
		return "-"
	}
	return strconv.FormatInt(*g.Index, 10)
}
