// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// items is how many items of what needs attention the screen has room for. A screen of
// few lines has only the nodes, with their reasons.
func (m Model) items() int {
	if m.height < 12 {
		return 0
	}
	return max(1, (m.height-above-below)/3)
}

// attentionLines is the height of the list: a heading, the items, how many more there are,
// what is not judged, and a line between.
func attentionLines(f *Fleet, most int) int {
	if f == nil || most == 0 {
		return 0
	}
	n := len(f.Attention.Items)
	lines := 2 + min(n, most)
	if n > most {
		lines++
	}
	if n == 0 && len(f.Attention.Waiting) > 0 {
		lines++
	}
	return lines
}

// attention are the lines of what needs a person, the worst first.
func (m Model) attention() []string {
	if m.fleet == nil || m.items() == 0 {
		return nil
	}
	list := &m.fleet.Attention
	if len(list.Items) == 0 {
		lines := []string{m.paint(bold, "NEEDS ATTENTION") + "  nothing"}
		if len(list.Waiting) > 0 {
			lines = append(lines, "  "+printable(list.Waiting[0]))
		}
		return append(lines, "")
	}
	most := m.items()
	if attention := attentionLines(m.fleet, onceItems); m.height >= above+below+attention+len(m.fleet.Nodes) {
		most = onceItems // there is room for all
	}
	lines := []string{m.paint(bold, fmt.Sprintf("NEEDS ATTENTION (%d), the worst first", list.Total))}
	for i := range list.Items[:min(len(list.Items), most)] {
		lines = append(lines, m.itemRow(&list.Items[i]))
	}
	if more := len(list.Items) - most; more > 0 {
		lines = append(lines, m.paint(faint, fmt.Sprintf("   and %d more", more)))
	}
	return append(lines, "")
}

// who names whom an item is about.
func who(i *fleetclient.AttentionItem) string {
	name := or(i.Node, or(i.Group, i.Cluster))
	return strings.TrimSpace(printable(name) + " " + printable(or(i.Part, "")))
}

func kindWords(i *fleetclient.AttentionItem) string {
	return strings.ReplaceAll(string(i.Kind), "_", " ")
}

func severityStyle(s fleetclient.AttentionItemSeverity) string {
	return map[fleetclient.AttentionItemSeverity]string{"critical": red, "major": yellow}[s]
}

// itemRow is severity, whom it is about, the sentence, and since when.
func (m Model) itemRow(i *fleetclient.AttentionItem) string {
	const severity, since = 9, 6
	name := min(max(18, m.width/3), 40)
	ago := "?"
	if i.DurationSeconds != nil {
		ago = age(time.Duration(*i.DurationSeconds*float64(time.Second)) + m.o.Now().Sub(m.fleet.At))
	}
	return m.cells([]cell{
		{string(i.Severity), severity, false, severityStyle(i.Severity)},
		{middle(who(i), name-1), name, false, ""},
		{printable(i.Text), m.width - severity - name - since, false, ""},
		{ago, since, true, ""},
	})
}

// troubleLines say what of a node needs attention, and what to do.
func (m Model) troubleLines(n *fleetclient.Node) (lines []string) {
	for i := range m.fleet.Attention.Items {
		item := &m.fleet.Attention.Items[i]
		if item.Cluster != n.Cluster || or(item.Node, "") != n.Node {
			continue
		}
		head := fmt.Sprintf("%s: %s", item.Severity, kindWords(item))
		if part := or(item.Part, ""); part != "" {
			head += ", " + printable(part)
		}
		if item.GPUHoursLostPerHour != nil {
			head += fmt.Sprintf(", costs %.3g GPU-hours per hour", *item.GPUHoursLostPerHour)
			if or(item.GPUHoursLostAtMost, false) {
				head += " at most"
			}
		}
		lines = append(lines, m.paint(severityStyle(item.Severity), head))
		texts := []string{item.Text, "-> " + item.Advice}
		if s := item.Silenced; s != nil {
			texts = append(texts, "silenced until "+s.Until.UTC().Format(time.RFC3339)+" by "+s.By+": "+s.Reason)
		}
		for _, text := range texts {
			lines = append(lines, strings.Split(ansi.Wrap(printable(text), max(20, m.width-2), ""), "\n")...)
		}
	}
	return lines
}

// helpLines explain the screen.
func (m Model) helpLines() []string {
	text := `
KEYS
  up, down, page up, page down, home, end    move
  enter   look at a node          esc   back, or end the filter
  /       filter by name, group, cluster, state or health
  i       pods that hold GPUs and do not use them, and the same by job
  r       load now                q     quit
  order: w worst first, s suspicion, c score, u used, t temperature, h health,
         a age, n name; the same key again turns the order around

WORDS
  NEEDS ATTENTION  all that needs a person, as the page has it
  critical, major  work is lost now; it costs work, or will soon
  SUSPICION        evidence against a node: from 1 on it is a straggler
  SCORE            1 is as fast as the peers
  USED, TEMP       mean use of the GPUs; the hottest GPU in Celsius
  HEALTH           of the worst GPU: healthy, degraded, unhealthy, unknown
  AGE              time since the node was last heard
  IDLE, FOR, HOURS held GPUs that do nothing, how long, and their GPU-hours
  REASON           why a node needs attention, and the part of it that is meant
  !                the node is in the list of what needs attention`
	return strings.Split(strings.Trim(text, "\n"), "\n")
}
