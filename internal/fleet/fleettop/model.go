// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Options of the screen.
type Options struct {
	Source   Source
	Endpoint string
	// Interval between two loads.
	Interval time.Duration
	// Now is the clock, time.Now by default.
	Now func() time.Time
	// Plain leaves colours out.
	Plain bool

	whole bool // the list of attention is shown in full
}

// loadTimeout bounds one load: a gateway that hangs shows as stale.
const loadTimeout = 10 * time.Second

// Model is the screen: bubbletea calls Update with what happened and shows View.
type Model struct {
	o      Options
	width  int
	height int

	fleet   *Fleet // of the last good load
	err     error  // of the last load
	loading bool

	sort      sortKey
	reverse   bool
	filter    string
	filtering bool // keys go to the filter

	page    page
	nodes   []*fleetclient.Node // as shown
	rank    map[Key]int         // of nodes in the list of attention
	longest int                 // width of the longest of their names
	cursor  Key                 // stays on its node when the order changes
	top     int                 // first row shown
	detail  *Key                // the selected node
	scroll  int                 // first line of its detail, or of the page
}

// page is shown instead of the nodes.
type page uint8

const (
	noPage page = iota
	listPage
	helpPage
)

// New returns the screen before its first load.
func New(o Options) Model {
	if o.Now == nil {
		o.Now = time.Now
	}
	return Model{o: o, width: 80, height: 24, sort: sortKeys[0], loading: true}
}

type (
	loadedMsg struct {
		fleet *Fleet
		err   error
	}
	tickMsg struct{}
)

// Init implements tea.Model.
func (m Model) Init() tea.Cmd { return tea.Batch(m.load(), m.tick()) }

func (m Model) tick() tea.Cmd {
	return tea.Tick(m.o.Interval, func(time.Time) tea.Msg { return tickMsg{} })
}

func (m Model) load() tea.Cmd {
	source, detail := m.o.Source, m.detail
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
		defer cancel()
		f, err := source.Load(ctx, detail)
		return loadedMsg{f, err}
	}
}

// Update implements tea.Model.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		if m.loading {
			return m, m.tick()
		}
		m.loading = true
		return m, tea.Batch(m.load(), m.tick())
	case loadedMsg:
		m.loading, m.err = false, msg.err
		if msg.err == nil {
			m.fleet = msg.fleet
			m = m.arranged()
		}
	case tea.PasteMsg:
		if m.filtering {
			m = m.typed(msg.Content).arranged()
		}
	case tea.KeyPressMsg:
		before := m
		var cmd tea.Cmd
		if m, cmd = m.key(msg); cmd != nil {
			return m, cmd
		}
		if m.filter != before.filter || m.sort.key != before.sort.key || m.reverse != before.reverse {
			m = m.arranged()
		}
	}
	return m.inSight(), nil
}

// arranged selects and sorts the nodes anew.
func (m Model) arranged() Model {
	if m.fleet != nil {
		m.rank = m.fleet.ranks()
		m.nodes = selected(m.fleet.Nodes, m.filter, m.sort, m.reverse, m.rank)
		m.longest = 0
		for _, n := range m.nodes {
			m.longest = max(m.longest, ansi.StringWidth(m.full(n)))
		}
	}
	return m
}

// inSight scrolls to the cursor.
func (m Model) inSight() Model {
	at, rows := m.at(), m.rows()
	if len(m.nodes) > 0 {
		m.cursor = Key{m.nodes[at].Cluster, m.nodes[at].Node}
	}
	m.top = max(min(m.top, at, len(m.nodes)-rows), at-rows+1, 0)
	return m
}

// at is the row of the cursor; the first when its node is gone.
func (m Model) at() int {
	return max(0, slices.IndexFunc(m.nodes, func(n *fleetclient.Node) bool { return Key{n.Cluster, n.Node} == m.cursor }))
}

func (m Model) move(to int) Model {
	if len(m.nodes) > 0 {
		n := m.nodes[min(max(to, 0), len(m.nodes)-1)]
		m.cursor = Key{n.Cluster, n.Node}
	}
	return m
}

func (m Model) key(k tea.KeyPressMsg) (Model, tea.Cmd) {
	if k.String() == "ctrl+c" {
		return m, tea.Quit
	}
	if m.filtering {
		return m.filterKey(k), nil
	}
	switch name := k.String(); name {
	case "q":
		return m, tea.Quit
	case "?", "tab":
		to := map[string]page{"?": helpPage, "tab": listPage}[name]
		if m.scroll = 0; m.page == to {
			to = noPage
		}
		m.page = to
	case "r":
		if !m.loading {
			m.loading = true
			return m, m.load()
		}
	case "esc", "backspace":
		switch {
		case m.page != noPage:
			m.page = noPage
		case m.detail != nil:
			m.detail = nil
		default:
			m.filter = ""
		}
	case "enter":
		if m.detail == nil && m.page == noPage && len(m.nodes) > 0 {
			cursor := m.cursor
			m.detail, m.scroll, m.loading = &cursor, 0, true
			return m, m.load()
		}
	default:
		if lines := m.body(); lines != nil {
			m.scroll = min(max(0, m.scroll+steps(name, m.bodyRoom())), max(0, len(lines)-m.bodyRoom()))
			return m, nil
		}
		return m.listKey(name), nil
	}
	return m, nil
}

func (m Model) listKey(name string) Model {
	switch by := steps(name, m.rows()); {
	case by != 0:
		return m.move(m.at() + by)
	case name == "/":
		m.filtering = true
		return m
	}
	for _, s := range sortKeys {
		if s.key == name {
			m.reverse = s.name == m.sort.name && !m.reverse
			m.sort, m.cursor = s, Key{} // to the new first
		}
	}
	return m
}

// all is farther than any list is long.
const all = 1 << 30

// steps is how far a key moves.
func steps(name string, page int) int {
	switch name {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup", "ctrl+b":
		return -page
	case "pgdown", "ctrl+f", "space":
		return page
	case "home", "g":
		return -all
	case "end", "G":
		return all
	}
	return 0
}

// maxFilter keeps the filter in one line.
const maxFilter = 60

func (m Model) filterKey(k tea.KeyPressMsg) Model {
	switch k.String() {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		m = m.typed(k.Text)
	}
	return m
}

func (m Model) typed(text string) Model {
	if len(m.filter) < maxFilter {
		m.filter += printable(text)
	}
	return m
}
