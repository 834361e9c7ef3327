// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

const (
	severityWidth, sinceWidth, costWidth = 10, 8, 13
	// shortText is how many lines what and why have beside the nodes.
	shortText = 2
)

// attention are the lines of the list above the nodes. It has three fifths of the room, or all
// that the nodes leave.
func (m Model) attention() []string {
	if m.fleet == nil {
		return nil
	}
	list := &m.fleet.Attention
	if m.o.whole {
		return append(m.listLines(), "")
	}
	room := m.height - above - below
	if room = max(room*3/5, room-max(1, len(m.nodes))) - 1; room < 1+1+shortText { // a line is between
		return nil
	}
	if len(list.Items) == 0 {
		return append(m.listLines()[:min(room, 1+len(list.Waiting))], "")
	}
	lines := []string{m.listHeading()}
	for i := range list.Items {
		item := m.itemLines(&list.Items[i], shortText)
		left, last := room-len(lines)-len(item), i == len(list.Items)-1
		if left < 0 || !last && left < 1 {
			lines = append(lines, m.paint(faint, fmt.Sprintf("and %d more: tab shows all, and what to do", int(list.Total)-i)))
			break
		}
		lines = append(lines, item...)
	}
	return append(lines, "")
}

// listLines are the whole list, with the advice, and the unjudged groups.
func (m Model) listLines() []string {
	list := &m.fleet.Attention
	lines := []string{m.listHeading()}
	for i := range list.Items {
		lines = append(lines, m.itemLines(&list.Items[i], math.MaxInt)...)
		lines = append(lines, m.indented("→ "+list.Items[i].Next)...)
	}
	if more := int(list.Total) - len(list.Items); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	for _, text := range list.Waiting {
		lines = append(lines, m.wrapped(text)...)
	}
	return lines
}

func (m Model) listHeading() string {
	list := &m.fleet.Attention
	if len(list.Items) == 0 {
		return m.paint(bold, "NEEDS ATTENTION") + "  nothing"
	}
	return m.paint(bold, m.cells(m.itemCells(fmt.Sprintf("NEEDS ATTENTION (%d), worst first", list.Total), "SINCE", "GPUS LOST")))
}

func (m Model) itemCells(where, since, cost string) []cell {
	return []cell{
		{where, max(1, m.width-sinceWidth-costWidth), false, ""},
		{since, sinceWidth, true, ""},
		{cost, costWidth, true, ""},
	}
}

// itemLines are severity, where, since when and cost, then what and why.
func (m Model) itemLines(i *fleetclient.AttentionItem, most int) []string {
	severity := fmt.Sprintf("%-*s", severityWidth, printable(string(i.Severity)))
	cells := m.itemCells(m.where(i), m.since(i), cost(i))
	cells[0].width -= severityWidth
	lines := []string{m.paint(styles[string(i.Severity)], severity) + m.cells(cells)}
	text := m.indented(strings.TrimSpace(i.What + " " + or(i.Why, "")))
	if len(text) > most {
		text[most-1] += "…"
		text = text[:most]
	}
	return append(lines, text...)
}

// where is the node and its part, or how many nodes of which group.
func (m Model) where(i *fleetclient.AttentionItem) string {
	text := or(i.Node, or(i.Group, ""))
	if m.fleet.Summary.Clusters > 1 || text == "" {
		text = strings.Trim(i.Cluster+"/"+text, "/")
	}
	if i.Node == nil && or(i.NodeCount, 0) > 0 {
		text += fmt.Sprintf(", %d nodes", *i.NodeCount)
	}
	return printable(strings.TrimSpace(text + " " + or(i.Part, "")))
}

// since is the item's age, which continues while the gateway does not answer.
func (m Model) since(i *fleetclient.AttentionItem) string {
	if i.DurationSeconds == nil {
		return "?"
	}
	text := age(time.Duration(*i.DurationSeconds*float64(time.Second)) + m.o.Now().Sub(m.fleet.At))
	if or(i.SinceBefore, false) {
		return ">" + text
	}
	return text
}

func cost(i *fleetclient.AttentionItem) string {
	switch {
	case i.GPUHoursLostPerHour == nil:
		return "-"
	case or(i.GPUHoursLostAtMost, false):
		return fmt.Sprintf("≤%.3g", *i.GPUHoursLostPerHour)
	}
	return fmt.Sprintf("%.3g", *i.GPUHoursLostPerHour)
}

// wrapped breaks a text from the network into lines of the screen.
func (m Model) wrapped(text string) []string {
	return strings.Split(ansi.Wrap(printable(text), max(20, m.width-1), ""), "\n")
}

func (m Model) indented(text string) []string {
	indent := strings.Repeat(" ", severityWidth)
	return strings.Split(indent+strings.ReplaceAll(ansi.Wrap(printable(text), max(20, m.width-severityWidth-1), ""), "\n", "\n"+indent), "\n")
}

// troubleLines are the items about a node, with reason and advice.
func (m Model) troubleLines(n *fleetclient.Node) (lines []string) {
	for i := range m.fleet.Attention.Items {
		item := &m.fleet.Attention.Items[i]
		if !about(item, Key{n.Cluster, n.Node}) {
			continue
		}
		head := fmt.Sprintf("%s for %s: %s", printable(string(item.Severity)), m.since(item), kindName(item))
		if part := or(item.Part, ""); part != "" {
			head += ", " + printable(part)
		}
		if item.GPUHoursLostPerHour != nil {
			head += strings.Replace(", costs "+cost(item)+" GPUs", " 1 GPUs", " 1 GPU", 1)
		}
		if item.Confidence != nil {
			head += fmt.Sprintf(", confidence %.0f %%", 100**item.Confidence)
		}
		lines = append(lines, "", m.paint(styles[string(item.Severity)], head))
		for _, part := range [][2]string{{"what", item.What}, {"why", or(item.Why, "")}, {"next", item.Next}} {
			if part[1] == "" {
				continue
			}
			text := m.indented(part[1])
			text[0] = fmt.Sprintf("%-*s", severityWidth, "  "+part[0]) + text[0][severityWidth:]
			lines = append(lines, text...)
		}
	}
	return lines
}

func kindName(i *fleetclient.AttentionItem) string {
	return printable(strings.ReplaceAll(string(i.Kind), "_", " "))
}

// helpLines explain the keys and the terms of the screen.
func (m Model) helpLines() []string {
	return strings.Split(`up down pgup pgdn home end   move          enter  look at a node     esc  back
tab    the whole list of what needs attention, with what to do next
/      filter by name, group, cluster, state, health     r  load now    q  quit
order  w worst first, s suspicion, c score, u used, t temperature, h health,
       a age, n name; the same key again turns it around

NEEDS ATTENTION  all that is wrong, from the gateway: the page shows the same
straggler        a node or rank that is slower than its peers
group fault      many nodes, a communicator or a job that is slow or stalled
lost, sick GPU   it does not answer; its health is degraded or unhealthy
SINCE            how long it has been so; >4m is four minutes or longer
GPUS LOST        GPUs whose work it costs; ≤8 is at most 8
peers            nodes of the same group, such as job, role and GPU model
SUSPICION        evidence that a node is slow: from 1 on it is a straggler
SCORE            1 is as fast as the peers
USED, TEMP       mean use of the GPUs; the hottest GPU in degrees Celsius
HEALTH           of the worst GPU: healthy, degraded, unhealthy, unknown
AGE              time since the last report of the node
REASON           why the node needs attention; docs/reasons.md explains each
!                a node in the list of what needs attention`, "\n")
}
