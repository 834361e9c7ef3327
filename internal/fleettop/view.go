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
func (m Model) rows() int { return max(1, m.height-above-below) }

// detailRoom is how many lines of a node's detail fit.
func (m Model) detailRoom() int { return max(1, m.height-(above-1)-below) }

// View implements tea.Model.
func (m Model) View() string {
	lines := append(make([]string, 0, m.height), m.title(), m.summary(), m.notice())
	switch {
	case m.detail != nil:
		body := m.detailLines()
		room := m.detailRoom()
		from := min(m.scroll, max(0, len(body)-room))
		lines = append(lines, body[from:min(len(body), from+room)]...)
	case m.fleet == nil && m.err != nil:
		// In full: above it has one line.
		lines = append(append(lines, ""), strings.Split(ansi.Wrap(printable(m.err.Error()), max(20, m.width-1), ""), "\n")...)
	default:
		lines = append(lines, m.paint(bold, m.row(m.heading())))
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
	case m.detail != nil:
		return m.paint(faint, "↑↓ scroll  esc back  r refresh  q quit")
	}
	return m.paint(faint, "↑↓ enter / filter q quit  by s susp c score u used t temp h health a age n name")
}

// column of the list. Widths are for 80 columns. A wider terminal gives the rest to
// the name and then to the reason of an episode.
type column struct {
	text  string
	width int
	right bool
	style string
}

const (
	fixedWidth  = 11 + 6 + 6 + 6 + 6 + 10 + 6 // all but marker, name and group
	reasonWidth = 30
)

// row lays out cells: marker, node, group, state, suspicion, score, usage,
// temperature, health, age, and the reason where there is room.
func (m Model) row(cells [11]column) string {
	var b strings.Builder
	for _, c := range cells {
		if c.width == 0 {
			continue
		}
		text := ansi.Truncate(c.text, c.width-1, "…")
		pad := strings.Repeat(" ", c.width-1-ansi.StringWidth(text))
		if c.right {
			text = pad + text
		} else {
			text += pad
		}
		b.WriteString(m.paint(c.style, text) + " ")
	}
	return strings.TrimRight(b.String(), " ")
}

func (m Model) widths() (name, group, reason int) {
	room := max(20, m.width-3-fixedWidth)
	if room > 40+reasonWidth {
		reason = reasonWidth
		room -= reason
	}
	// Names first: a list whose names are cut off says nothing.
	name = min(max(room-room*2/5, m.longest+1), room)
	if group = room - name; group < leastGroup {
		name, group = room, 0
	}
	return name, group, reason
}

// leastGroup is the room in which a group can be told from another.
const leastGroup = 7

// full is the name of a node, with its cluster where there are several.
func (m Model) full(n *fleetclient.Node) string {
	if m.fleet.Summary.Clusters > 1 {
		return printable(n.Cluster) + "/" + printable(n.Node)
	}
	return printable(n.Node)
}

// label is the name in a room: of the two the cluster is cut first.
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

func (m Model) heading() [11]column {
	name, group, reason := m.widths()
	mark := func(s, key string) string {
		if m.sort.name != key {
			return s
		}
		if m.reverse {
			return s + "▲"
		}
		return s + "▼"
	}
	return [11]column{
		{"", 3, false, ""},
		{mark("NODE", "name"), name, false, ""},
		{"GROUP", group, false, ""},
		{"STATE", 11, false, ""},
		{mark("SUSP", "suspicion"), 6, true, ""},
		{mark("SCOR", "score"), 6, true, ""},
		{mark("USED", "usage"), 6, true, ""},
		{mark("TEMP", "temperature"), 6, true, ""},
		{mark("HEALTH", "health"), 10, false, ""},
		{mark("AGE", "age"), 6, true, ""},
		{"REASON", reason, false, ""},
	}
}

func (m Model) nodeRow(n *fleetclient.Node) string {
	name, group, reason := m.widths()
	marker, nameStyle := "", ""
	if n.Straggler {
		marker, nameStyle = " !", red
	}
	state, stateStyle := or(n.State, "unknown"), ""
	if state == "missing" {
		stateStyle = yellow
	}
	why := ""
	if e := m.episode(n); e != nil {
		why = printable(or(e.Reason, "")) + " " + printable(or(e.GPU, ""))
		if c := e.Culprit; c != nil && c.Rank != nil {
			why = "rank " + strconv.FormatInt(*c.Rank, 10) + " " + why
		}
	}
	line := m.row([11]column{
		{marker, 3, false, red},
		{m.label(n, name-1), name, false, nameStyle},
		{printable(or(n.Group, "")), group, false, ""},
		{printable(state), 11, false, stateStyle},
		{number(n.Suspicion, 2), 6, true, nameStyle},
		{number(n.Score, 3), 6, true, ""},
		{percent(n.Usage), 6, true, ""},
		{number(n.MaxTemperatureCelsius, 0), 6, true, ""},
		{string(n.Health), 10, false, healthStyle(string(n.Health))},
		{age(m.nodeAge(n)), 6, true, stateStyle},
		{why, reason, false, ""},
	})
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
