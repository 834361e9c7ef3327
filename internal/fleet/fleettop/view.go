// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Colours of the terminal's own palette, so that they fit its background.
const (
	bold    = "\x1b[1m"
	faint   = "\x1b[2m"
	reverse = "\x1b[7m"
	red     = "\x1b[31m"
	yellow  = "\x1b[33m"
	reset   = "\x1b[0m"
)

// styles of severities, states of health and states of nodes.
var styles = map[string]string{
	"critical": red, "major": yellow, "unhealthy": red, "degraded": yellow, "unknown": faint, "missing": yellow,
}

func (m Model) paint(style, s string) string {
	if m.o.Plain || style == "" {
		return s
	}
	return style + s + reset
}

// Lines around the list: title, summary, notice and heading above, help below.
const (
	above = 4
	below = 1
)

// rows is how many nodes fit.
func (m Model) rows() int { return max(1, m.height-above-below-len(m.attention())) }

// bodyRoom is how many lines fit instead of the nodes.
func (m Model) bodyRoom() int { return max(1, m.height-(above-1)-below) }

// body are all lines of a page or a node's detail, nil for the list of nodes.
func (m Model) body() []string {
	switch {
	case m.page == helpPage:
		return m.helpLines()
	case m.page == listPage && m.fleet != nil:
		return m.listLines()
	case m.detail != nil && m.fleet != nil:
		return m.detailLines()
	}
	return nil
}

// View implements tea.Model.
func (m Model) View() tea.View {
	v := tea.NewView(m.text())
	v.AltScreen = true
	return v
}

func (m Model) text() string {
	lines := append(make([]string, 0, m.height), m.paint(bold, "gpu-collector top")+"  "+m.o.Endpoint, m.summary(), m.notice())
	switch body, room := m.body(), m.bodyRoom(); {
	case body != nil:
		from := min(m.scroll, max(0, len(body)-room))
		lines = append(lines, body[from:min(len(body), from+room)]...)
	case m.fleet == nil && m.err != nil:
		// In full: above it has one line.
		lines = append(append(lines, ""), m.wrapped(m.err.Error())...)
	default:
		lines = append(lines, m.attention()...)
		lines = append(lines, m.paint(bold, m.heading()))
		for i := m.top; i < min(len(m.nodes), m.top+m.rows()); i++ {
			lines = append(lines, m.nodeRow(m.nodes[i]))
		}
		if m.fleet != nil && len(m.nodes) == 0 {
			lines = append(lines, "no node"+map[bool]string{true: " matches the filter"}[m.filter != ""])
		}
	}
	for len(lines) < m.height-below {
		lines = append(lines, "")
	}
	lines = append(lines, m.help())
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, m.width, "…")
	}
	return strings.Join(lines[:min(len(lines), m.height)], "\n")
}

func (m Model) summary() string {
	if m.fleet == nil {
		return map[bool]string{true: "asking ..."}[m.err == nil]
	}
	s := &m.fleet.Summary
	c := &m.fleet.Attention.Counts
	text := fmt.Sprintf("%d nodes (%d missing) · stragglers %d · group faults %d · %d GPUs (%d sick, %d lost)",
		s.Nodes, c.MissingNodes, c.Stragglers, c.GroupFaults, s.Gpus, c.SickGpus, c.LostGpus)
	if s.PowerWatts != nil {
		text += fmt.Sprintf(" · %.1f kW", *s.PowerWatts/1000)
	}
	return text
}

// notice is the line of the last error, or of the filter.
func (m Model) notice() string {
	switch {
	case m.err != nil && m.fleet == nil:
		return m.paint(reverse, "NO ANSWER: "+printable(why(m.err)))
	case m.err != nil:
		return m.paint(reverse, fmt.Sprintf("STALE, %s old: %s", age(m.o.Now().Sub(m.fleet.At)), printable(why(m.err))))
	case m.filtering:
		return "filter: " + m.filter + "_"
	case m.filter != "":
		return "filter: " + m.filter + m.paint(faint, "  (esc ends it)")
	}
	return ""
}

// why is the error in one line, without the request, which the title shows.
func why(err error) string {
	var answer *fleetclient.Error
	if errors.As(err, &answer) {
		if answer.Status == http.StatusUnauthorized {
			return "status 401, give --token-file, or user and password in the URL"
		}
		if answer.Status == http.StatusNotFound && answer.Problem.Detail != nil {
			return "--cluster: " + *answer.Problem.Detail
		}
		return answer.Error()
	}
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err.Error()
	}
	return err.Error()
}

func (m Model) help() string {
	switch {
	case m.filtering:
		return m.paint(faint, "type part of a name, group, cluster, state or health; enter keeps, esc clears")
	case m.body() != nil:
		return m.paint(faint, "↑↓ scroll  esc back  ? help  q quit")
	}
	return m.paint(faint, "? help  ↑↓ enter node  tab all that needs attention  / filter  q quit")
}

// column of the nodes besides name and reason.
type column struct {
	head, sort string // sort is the name of its sortKey, empty for none
	width      int
	right      bool
	keep       int // the smaller, the narrower the terminal that still has it
	cell       func(m Model, n *fleetclient.Node) (text, style string)
}

var columns = []column{
	{"GROUP", "", 17, false, 7, func(_ Model, n *fleetclient.Node) (string, string) { return or(n.Group, ""), "" }},
	{"STATE", "", 12, false, 4, func(_ Model, n *fleetclient.Node) (string, string) {
		return string(or(n.State, "unknown")), styles[string(or(n.State, ""))]
	}},
	{"SUSPICION", "suspicion", 11, true, 0, func(_ Model, n *fleetclient.Node) (string, string) {
		return number(n.Suspicion, "%.2f"), map[bool]string{true: red}[n.Straggler]
	}},
	{"SCORE", "score", 7, true, 2, func(_ Model, n *fleetclient.Node) (string, string) { return number(n.Score, "%.3f"), "" }},
	{"USED", "usage", 6, true, 6, func(_ Model, n *fleetclient.Node) (string, string) { return percent(n.Utilization), "" }},
	{"TEMP", "temperature", 6, true, 5, func(_ Model, n *fleetclient.Node) (string, string) {
		return number(n.MaxTemperatureCelsius, "%.0f"), ""
	}},
	{"HEALTH", "health", 10, false, 1, func(_ Model, n *fleetclient.Node) (string, string) {
		return string(n.Health), styles[string(n.Health)]
	}},
	{"AGE", "age", 6, true, 3, func(m Model, n *fleetclient.Node) (string, string) { return age(m.nodeAge(n)), "" }},
}

const (
	leastName   = 16
	leastReason = 24
	// essential is how many columns come before the rest of a long name.
	essential = 2
)

// shown are the columns that fit, and the widths of name and reason. Names come before most
// columns: a list with truncated names is useless.
func (m Model) shown() (list []column, name, reason int) {
	room := max(0, m.width-3-leastName-leastReason)
	fits := make([]bool, len(columns))
	name = leastName
	for keep := range columns {
		if keep == essential {
			name = max(leastName, min(leastName+room, m.longest+1))
			room -= name - leastName
		}
		for i := range columns {
			due := columns[i].keep == keep || keep == 0 && columns[i].sort == m.sort.name // the order is seen
			if due && !fits[i] && columns[i].width <= room {
				fits[i] = true
				room -= columns[i].width
			}
		}
	}
	for i := range columns {
		if fits[i] {
			list = append(list, columns[i])
		}
	}
	return list, name, leastReason + room
}

// cell is a text in a width.
type cell struct {
	text  string
	width int
	right bool
	style string
}

// cells joins cells into a line.
func (m Model) cells(list []cell) string {
	var b strings.Builder
	for _, c := range list {
		text := ansi.Truncate(printable(c.text), max(0, c.width-1), "…")
		pad := strings.Repeat(" ", max(0, c.width-1-ansi.StringWidth(text)))
		if c.right {
			text = pad + text
		} else {
			text += pad
		}
		b.WriteString(m.paint(c.style, text) + " ")
	}
	return strings.TrimRight(b.String(), " ")
}

func (m Model) heading() string {
	columns, name, reason := m.shown()
	mark := func(s, key string) string {
		switch {
		case key == "" || m.sort.name != key:
			return s
		case m.reverse:
			return s + "▲"
		}
		return s + "▼"
	}
	list := []cell{{"", 3, false, ""}, {mark("NODE", "name"), name, false, ""}}
	for _, c := range columns {
		list = append(list, cell{mark(c.head, c.sort), c.width, c.right, ""})
	}
	return m.cells(append(list, cell{"REASON", reason, false, ""}))
}

// full is the name of a node, with its cluster where there are several.
func (m Model) full(n *fleetclient.Node) string {
	if m.fleet.Summary.Clusters > 1 {
		return printable(n.Cluster) + "/" + printable(n.Node)
	}
	return printable(n.Node)
}

// label is the name in so many columns: the cluster is cut before the node.
func (m Model) label(n *fleetclient.Node, room int) string {
	text, node := m.full(n), printable(n.Node)
	if ansi.StringWidth(text) <= room {
		return text
	}
	if spare := room - ansi.StringWidth(node) - 1; spare > 1 {
		return ansi.Truncate(printable(n.Cluster), spare, "…") + "/" + node
	}
	return node
}

func (m Model) nodeRow(n *fleetclient.Node) string {
	columns, name, reason := m.shown()
	marker, nameStyle, why := "", "", ""
	if at, named := m.rank[Key{n.Cluster, n.Node}]; named {
		i := &m.fleet.Attention.Items[at]
		marker, nameStyle = " !", styles[string(i.Severity)]
		why = strings.TrimSpace(or(i.Reason, kindName(i)) + " " + or(i.Part, ""))
	}
	list := []cell{{marker, 3, false, nameStyle}, {m.label(n, name-1), name, false, nameStyle}}
	for _, c := range columns {
		text, style := c.cell(m, n)
		list = append(list, cell{text, c.width, c.right, style})
	}
	line := m.cells(append(list, cell{why, reason, false, ""}))
	if m.cursor == (Key{n.Cluster, n.Node}) {
		line = ansi.Strip(line)
		line += strings.Repeat(" ", max(0, m.width-ansi.StringWidth(line)))
		if m.o.Plain {
			return ">" + strings.TrimRight(line[1:], " ")
		}
		return m.paint(reverse, line)
	}
	return line
}

// nodeAge continues while the gateway does not answer.
func (m Model) nodeAge(n *fleetclient.Node) time.Duration {
	return time.Duration(n.AgeSeconds*float64(time.Second)) + m.o.Now().Sub(m.fleet.At)
}

// number writes a known value by a format.
func number(v *float64, format string) string { return scaled(v, 1, format) }

func percent(v *float64) string { return scaled(v, 100, "%.0f%%") }

func scaled(v *float64, factor float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*factor)
}

// age in one unit, as a column wants it.
func age(d time.Duration) string {
	switch d = max(0, d); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
