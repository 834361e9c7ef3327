// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

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
func (m Model) rows() int {
	return max(1, m.height-above-below-attentionLines(m.fleet, m.items()))
}

// View implements tea.Model.
func (m Model) View() string {
	lines := append(make([]string, 0, m.height), m.title(), m.summary(), m.notice())
	switch {
	case m.helping:
		lines = append(lines[:1], m.helpLines()...)
	case m.detail != nil, m.idling:
		body := m.bodyLines()
		from := min(m.scroll, max(0, len(body)-m.bodyRoom()))
		lines = append(lines, body[from:min(len(body), from+m.bodyRoom())]...)
	case m.fleet == nil && m.err != nil:
		// In full: above it has one line.
		lines = append(append(lines, ""), strings.Split(ansi.Wrap(printable(m.err.Error()), max(20, m.width-1), ""), "\n")...)
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

// bodyRoom is how many of them fit below title, summary and notice.
func (m Model) bodyRoom() int { return max(1, m.height-3-below) }

// bodyLines are all lines of what is looked at in place of the list.
func (m Model) bodyLines() []string {
	if m.idling {
		return m.idleLines()
	}
	return m.detailLines()
}

func (m Model) title() string {
	return m.paint(bold, "gpu-collector top") + "  " + m.o.Endpoint
}

func (m Model) summary() string {
	if m.fleet == nil {
		return map[bool]string{true: "asking ..."}[m.err == nil]
	}
	s := &m.fleet.Summary
	text := fmt.Sprintf("%d nodes (%d missing) · stragglers %d · episodes %d · %d GPUs (%d sick, %d down)",
		s.Nodes, s.NodesByState["missing"], s.Stragglers, s.OpenEpisodes, s.Gpus, s.GpusByHealth["degraded"]+s.GpusByHealth["unhealthy"], s.GpusDown)
	if s.PowerWatts != nil {
		text += fmt.Sprintf(" · %.1f kW", *s.PowerWatts/1000)
	}
	return text
}

// notice says what is wrong, or what is filtered.
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

// why says what is wrong in as few words as a line has room for: not what was
// asked, which the title shows, but what came of it.
func why(err error) string {
	var answer *fleetclient.Error
	if errors.As(err, &answer) {
		if answer.Status == http.StatusUnauthorized {
			return "status 401, give --token-file, or user and password in the URL"
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
	case m.detail != nil, m.idling:
		return m.paint(faint, "↑↓ scroll  esc back  r refresh  q quit")
	}
	return m.paint(faint, "? help  ↑↓ enter  / filter  i idle GPUs  q quit  order: w worst s suspicion")
}

// column of the list.
type column struct {
	head, sort string // sort is the name of its sortKey, empty for none
	width      int
	right      bool
	cell       func(m Model, n *fleetclient.Node) (text, style string)
}

// columns of a node besides its name and the reason, in their order; those whose place in
// keep is small stay on a narrow terminal.
var columns = []struct {
	column
	keep int
}{
	{column{"GROUP", "", 17, false, func(_ Model, n *fleetclient.Node) (string, string) { return printable(or(n.Group, "")), "" }}, 7},
	{column{"STATE", "", 12, false, func(_ Model, n *fleetclient.Node) (string, string) {
		state := printable(or(n.State, "unknown"))
		return state, map[bool]string{true: yellow}[state == "missing"]
	}}, 4},
	{column{"SUSPICION", "suspicion", 11, true, func(_ Model, n *fleetclient.Node) (string, string) {
		return number(n.Suspicion, 2), map[bool]string{true: red}[n.Straggler]
	}}, 0},
	{column{"SCORE", "score", 7, true, func(_ Model, n *fleetclient.Node) (string, string) { return number(n.Score, 3), "" }}, 1},
	{column{"USED", "usage", 6, true, func(_ Model, n *fleetclient.Node) (string, string) { return percent(n.Usage), "" }}, 6},
	{column{"TEMP", "temperature", 6, true, func(_ Model, n *fleetclient.Node) (string, string) { return number(n.MaxTemperatureCelsius, 0), "" }}, 5},
	{column{"HEALTH", "health", 10, false, func(_ Model, n *fleetclient.Node) (string, string) {
		return string(n.Health), healthStyle(string(n.Health))
	}}, 2},
	{column{"AGE", "age", 6, true, func(m Model, n *fleetclient.Node) (string, string) { return age(m.nodeAge(n)), "" }}, 3},
}

const (
	leastName   = 16
	leastReason = 24
	// essential is how many columns come before the rest of a long name.
	essential = 4
)

// shown are the columns that fit, and the widths of name and reason. Names come before
// most columns: a list whose names are cut off says nothing. The reason is always there.
func (m Model) shown() (list []column, name, reason int) {
	room := m.width - 3 - leastName - leastReason
	fits := map[int]bool{}
	for keep := range columns {
		if keep == essential {
			name = min(max(0, room), max(0, m.longest+1-leastName))
			room -= name
		}
		for i := range columns {
			if c := &columns[i]; c.keep == keep && c.width <= room {
				fits[i] = true
				room -= c.width
			}
		}
	}
	for i := range columns {
		if fits[i] {
			list = append(list, columns[i].column)
		}
	}
	room = max(0, room)
	return list, leastName + name, leastReason + room
}

// cells puts texts of given widths into a row.
func (m Model) cells(list []cell) string {
	var b strings.Builder
	for _, c := range list {
		if c.width <= 0 {
			continue
		}
		text := ansi.Truncate(c.text, c.width-1, "…")
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

type cell struct {
	text  string
	width int
	right bool
	style string
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

// label is the name in a room: of the two the cluster is cut first, then the name loses
// its middle.
func (m Model) label(n *fleetclient.Node, room int) string {
	text, node := m.full(n), printable(n.Node)
	if ansi.StringWidth(text) <= room {
		return text
	}
	if spare := room - ansi.StringWidth(node) - 1; spare > 1 {
		return ansi.Truncate(printable(n.Cluster), spare, "…") + "/" + node
	}
	return middle(node, room)
}

// middle shortens a name to a width: how it begins and ends tells it from its neighbours.
func middle(name string, room int) string {
	width := ansi.StringWidth(name)
	if width <= room || room < 5 {
		return ansi.Truncate(name, room, "…")
	}
	head := (room - 1) / 2
	return ansi.Truncate(name, head, "") + "…" + ansi.TruncateLeft(name, width-(room-1-head), "")
}

func (m Model) nodeRow(n *fleetclient.Node) string {
	columns, name, reason := m.shown()
	marker, nameStyle := "", ""
	if _, named := m.place[Key{n.Cluster, n.Node}]; named {
		marker = " !"
	}
	if n.Straggler {
		nameStyle = red
	}
	list := []cell{{marker, 3, false, red}, {m.label(n, name-1), name, false, nameStyle}}
	for _, c := range columns {
		text, style := c.cell(m, n)
		list = append(list, cell{text, c.width, c.right, style})
	}
	line := m.cells(append(list, cell{m.reason(n), reason, false, ""}))
	if n.Node == m.cursor.Node && n.Cluster == m.cursor.Cluster {
		line = ansi.Strip(line)
		line += strings.Repeat(" ", max(0, m.width-ansi.StringWidth(line)))
		if m.o.Plain {
			return ">" + strings.TrimRight(line[1:], " ")
		}
		return m.paint(reverse, line)
	}
	return line
}

// reason says in a few words why a node needs attention: the reason's name, and the part
// of the node that is meant.
func (m Model) reason(n *fleetclient.Node) string {
	at, named := m.place[Key{n.Cluster, n.Node}]
	if !named {
		return ""
	}
	i := &m.fleet.Attention.Items[at]
	why := printable(or(i.Reason, ""))
	if why == "" {
		why = kindWords(i)
	}
	return strings.TrimSpace(why + " " + printable(or(i.Part, "")))
}

// nodeAge goes on while the gateway is away.
func (m Model) nodeAge(n *fleetclient.Node) time.Duration {
	return time.Duration(n.AgeSeconds*float64(time.Second)) + m.o.Now().Sub(m.fleet.At)
}

func (m Model) episode(n *fleetclient.Node) *fleetclient.Episode {
	for i := range m.fleet.Episodes {
		if e := &m.fleet.Episodes[i]; e.Cluster == n.Cluster && or(e.Node, "") == n.Node {
			return e
		}
	}
	return nil
}

func healthStyle(h string) string {
	return map[string]string{"unhealthy": red, "degraded": yellow, "unknown": faint}[h]
}

func number(v *float64, digits int) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v, 'f', digits, 64)
}

func percent(v *float64) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatFloat(*v*100, 'f', 0, 64) + "%"
}

// age in one unit, as a column wants it.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < 2*time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}
