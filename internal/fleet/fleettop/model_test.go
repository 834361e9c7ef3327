// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden screens")

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// fakeSource records its last request.
type fakeSource struct {
	fleet  *Fleet
	err    error
	detail *Key
	loads  int
}

func (s *fakeSource) Load(_ context.Context, detail *Key) (*Fleet, error) {
	s.loads++
	s.detail = detail
	return s.fleet, s.err
}

// screen is a model and its clock.
type screen struct {
	t *testing.T
	Model
	source *fakeSource
	now    time.Time
}

func newScreen(t *testing.T, f *Fleet) *screen {
	t.Helper()
	s := &screen{t: t, source: &fakeSource{fleet: f}, now: t0}
	s.Model = New(Options{Source: s.source, Endpoint: "http://gateway:8086", Interval: time.Hour, Now: func() time.Time { return s.now }, Plain: true})
	s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	return s
}

// send gives the model a message and returns its command.
func (s *screen) send(msg tea.Msg) tea.Cmd {
	s.t.Helper()
	m, cmd := s.Update(msg)
	s.Model = m.(Model)
	return cmd
}

// pressed is the message of a key by its name.
func pressed(name string) tea.Msg {
	for _, k := range []tea.Key{
		{Code: tea.KeyEnter},
		{Code: tea.KeyEsc},
		{Code: tea.KeyUp},
		{Code: tea.KeyDown},
		{Code: tea.KeyPgDown},
		{Code: tea.KeyEnd},
		{Code: tea.KeyHome},
		{Code: tea.KeyBackspace},
		{Code: tea.KeyTab},
		{Code: tea.KeySpace, Text: " "},
		{Code: 'c', Mod: tea.ModCtrl},
	} {
		if k.String() == name {
			return tea.KeyPressMsg(k)
		}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// press gives keys; a command that loads is run.
func (s *screen) press(keys ...string) {
	s.t.Helper()
	for _, k := range keys {
		if cmd := s.send(pressed(k)); cmd != nil {
			if answer, ok := cmd().(loadedMsg); ok {
				s.send(answer)
			}
		}
	}
}

func (s *screen) load() { s.send(s.Model.load()()) }

// names are the nodes of the screen, from above.
func (s *screen) names() []string {
	var names []string
	for i := s.top; i < min(len(s.nodes), s.top+s.rows()); i++ {
		names = append(names, s.nodes[i].Node)
	}
	return names
}

func (s *screen) golden(name string) {
	s.t.Helper()
	view := s.text()
	lines := strings.Split(view, "\n")
	require.LessOrEqual(s.t, len(lines), s.height, "higher than the terminal")
	for _, line := range lines {
		require.LessOrEqual(s.t, ansi.StringWidth(line), s.width, "wider than the terminal: %q", line)
	}
	file := "testdata/" + name + ".txt"
	if *update {
		require.NoError(s.t, os.WriteFile(file, []byte(view+"\n"), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(s.t, err)
	assert.Equal(s.t, string(want), view+"\n")
}

func testFleet(nodes int) *Fleet {
	f := &Fleet{At: t0, Summary: fleetclient.Summary{
		Clusters: 1, Nodes: int64(nodes), NodesByState: map[string]int64{"missing": 1}, Gpus: 8 * int64(nodes),
		GpusByHealth: map[string]int64{"unhealthy": 1}, GpusDown: 1, Stragglers: 1, OpenEpisodes: 1, PowerWatts: new(43210.0),
	}}
	for i := range nodes {
		n := &fleetclient.Node{
			Cluster: "prod", Node: fmt.Sprintf("gpu-%03d", i), Group: new("llama/stage-0"), State: new(fleetclient.NodeStateActive), Health: fleetclient.NodeHealthHealthy,
			Suspicion: new(0.01 * float64(i%7)), Score: new(0.98 - 0.001*float64(i)), Utilization: new(0.9), MaxTemperatureCelsius: new(60 + float64(i%10)), AgeSeconds: 3,
		}
		f.Nodes = append(f.Nodes, n)
	}
	slow := f.Nodes[17]
	slow.Straggler, slow.Suspicion, slow.Score = true, new(1.42), new(0.61)
	f.Nodes[3].State, f.Nodes[3].AgeSeconds = new(fleetclient.NodeStateMissing), 400
	f.Nodes[3].Suspicion = nil
	f.Nodes[5].Health, f.Nodes[5].MaxTemperatureCelsius = fleetclient.NodeHealthUnhealthy, new(91.0)
	f.Episodes = []fleetclient.Episode{{
		ID: "1", Cluster: "prod", Node: new("gpu-017"), Open: true, Subject: "node",
		Evidence: &[]fleetclient.Evidence{{Fact: "hw_thermal", Value: new(0.8), Peers: new(0.0), GPU: new("GPU-5a")}},
	}}
	f.Attention = fleetclient.AttentionList{Total: 4, Counts: fleetclient.AttentionCounts{Nodes: 40, Stragglers: 1, LostGpus: 1, SickGpus: 1, MissingNodes: 1}, Items: []fleetclient.AttentionItem{
		{
			Kind: "straggler", Severity: "critical", Cluster: "prod", Group: new("llama/stage-0"), Node: new("gpu-017"), Part: new("rank 11 (GPU 3)"),
			What: "38 % behind its peers in throughput.", Why: new("The hardware lowers the clocks of GPU 3 because of heat: 94 °C, peers 61 °C."),
			Next: "Check fans, airflow and coolant of the node.", Reason: new("hw_thermal"), DurationSeconds: new(240.0), GPUHoursLostPerHour: new(12.54),
		},
		{
			Kind: "group_fault", Severity: "critical", Cluster: "prod", Group: new("llama/stage-1"), Nodes: new([]string{"gpu-006", "gpu-007"}), NodeCount: new(int64(2)),
			What: "2 nodes fell behind together.", Next: "Look at what they share.", DurationSeconds: new(7300.0), GPUHoursLostPerHour: new(16.0), GPUHoursLostAtMost: new(true),
		},
		{
			Kind: "sick_gpu", Severity: "major", Cluster: "prod", Node: new("gpu-005"), Part: new("GPU 2"), What: "A row could not be remapped.",
			Next: "Have the GPU serviced.", Reason: new("remap_failed"), DurationSeconds: new(7300.0), SinceBefore: new(true),
		},
		{Kind: "missing_node", Severity: "major", Cluster: "prod", Node: new("gpu-003"), What: "The gateway hears nothing of the node.", Next: "Look at the agent."},
	}, Waiting: []string{"3 nodes of job-7 are not judged: they have too few peers."}}
	return f
}

func TestScreens(t *testing.T) {
	s := newScreen(t, testFleet(40))
	s.golden("asking")
	s.load()
	s.golden("list")
	s.press("down", "down", "t")
	s.golden("by-temperature")
	s.press("s", "enter")
	require.Equal(t, &Key{"prod", "gpu-017"}, s.source.detail)
	s.golden("gone")
	detail := *s.source.fleet.Nodes[17]
	detail.AgentThreshold, detail.DetectionMode = new(0.93), new(fleetclient.NodeDetectionModeFleet)
	detail.Signals = []fleetclient.Signal{{Signal: "throughput", Value: 0.0321, Median: new(0.0518)}, {Signal: "cpu", Value: 0.97}}
	detail.Gpus = &[]fleetclient.GPU{
		{
			UUID: "GPU-5a", Index: new(int64(0)), Health: "degraded", HealthScore: new(60.0), TemperatureCelsius: new(91.0), PowerWatts: new(412.0), Utilization: new(1.0),
			MemoryUsedBytes: new(6e10), MemoryLimitBytes: new(8e10), SmClockHertz: new(1.2e9), Reasons: []fleetclient.HealthReason{{Reason: "thermal", Action: new("service")}},
			ThrottleReasons: []string{"hw_thermal"}, Allocations: &[]fleetclient.Holder{{Job: new("1234")}, {Namespace: new("ml"), Pod: new("train-0"), Container: new("main")}},
		},
		{UUID: "GPU-5b", Index: new(int64(1)), Health: "unknown", Up: new(false), UpReason: new("lost"), Xids: []fleetclient.Xid{{Code: 79, Count: 2}}},
	}
	s.source.fleet.Detail = &detail
	s.press("r")
	s.golden("detail")
	s.press("end")
	s.golden("detail-end")
	s.press("esc", "/", "s", "t", "a", "g", "e", "-", "9")
	s.golden("filtering")
	s.press("esc")
	s.send(tea.WindowSizeMsg{Width: 132, Height: 12})
	s.golden("wide")
	s.send(tea.WindowSizeMsg{Width: 40, Height: 8})
	s.golden("narrow")
	s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	s.press("tab")
	s.golden("attention")
	s.press("?")
	s.golden("help")
}

func TestStaleWhileTheGatewayIsAway(t *testing.T) {
	s := newScreen(t, testFleet(3+17))
	s.source.err = errors.New("connection refused\x1b[2J\nbye")
	s.load()
	s.golden("no-answer")
	s.source.err = nil
	s.load()
	s.source.err = errors.New("connection refused")
	s.now = s.now.Add(75 * time.Second)
	s.load()
	s.golden("stale")
	assert.Len(t, s.nodes, 20, "what was known stays")
	s.source.err = nil
	s.load()
	assert.NotContains(t, s.text(), "STALE")
}

// TestNotices: a line of 80 columns has no room for the request.
func TestNotices(t *testing.T) {
	for want, err := range map[string]error{
		"NO ANSWER: dial tcp 10.0.0.1:8086: connect: connection refused": fmt.Errorf("empty: %w",
			&url.Error{Op: "Get", URL: "http://gateway:8086/api/v1/nodes?page=1&limit=1000", Err: errors.New("dial tcp 10.0.0.1:8086: connect: connection refused")}),
		"NO ANSWER: status 401, give --token-file, or user and password in the URL": fmt.Errorf("empty: %w", &fleetclient.Error{Status: http.StatusUnauthorized}),
		"NO ANSWER: --cluster: no cluster \"nope\" is known, known are prod": fmt.Errorf("empty: %w",
			&fleetclient.Error{Status: http.StatusNotFound, Problem: fleetclient.ErrorModel{Detail: new(`no cluster "nope" is known, known are prod`)}}),
		"NO ANSWER: status 503 Service Unavailable": fmt.Errorf("empty: %w", &fleetclient.Error{Status: http.StatusServiceUnavailable}),
	} {
		s := newScreen(t, testFleet(1+17))
		s.source.err = err
		s.load()
		lines := strings.Split(s.text(), "\n")
		assert.Equal(t, want, lines[2])
		assert.NotContains(t, s.text(), "asking", "no request is pending")
		whole := strings.Join(lines[4:], " ")
		assert.Contains(t, strings.Join(strings.Fields(whole), " "), strings.Fields(err.Error())[0], "in full below")
	}
}

// TestNamesBeforeAllElse: of several clusters, only the node distinguishes the rows.
func TestNamesBeforeAllElse(t *testing.T) {
	f := testFleet(20)
	f.Summary.Clusters = 2
	for _, n := range f.Nodes {
		n.Cluster = "production-east-1"
		n.Node = "node-00" + n.Node[4:]
	}
	s := newScreen(t, f)
	s.load()
	view := s.text()
	assert.Contains(t, view, "production-east-1/node-00017")
	assert.NotContains(t, view, "GROUP", "no room for both")
	s.send(tea.WindowSizeMsg{Width: 140, Height: 24})
	assert.Contains(t, s.text(), "llama/stage-0")
	s.send(tea.WindowSizeMsg{Width: 30, Height: 24})
	assert.Contains(t, s.text(), "node-00017")
}

func TestSortKeys(t *testing.T) {
	s := newScreen(t, testFleet(20))
	s.load()
	assert.Equal(t, []string{"gpu-017", "gpu-006", "gpu-007", "gpu-005", "gpu-003", "gpu-013"}, s.names()[:6], "as the list has them, then by suspicion")
	for key, first := range map[string]string{"s": "gpu-017", "c": "gpu-017", "t": "gpu-005", "h": "gpu-005", "u": "gpu-000", "a": "gpu-003", "n": "gpu-000"} {
		s.press("n", "end") // from somewhere else
		if key == "n" {
			s.press("s")
		}
		s.press(key)
		assert.Equal(t, first, s.names()[0], "sorted by %s", key)
		forward := s.nodes
		s.press(key)
		assert.Equal(t, forward[0].Node, s.nodes[len(s.nodes)-1].Node, "%s pressed again turns it around", key)
	}
	s.press("n")
	s.press("s")
	assert.Equal(t, "gpu-003", s.nodes[len(s.nodes)-1].Node, "what is not known comes last")
}

func TestCursorStaysOnItsNode(t *testing.T) {
	s := newScreen(t, testFleet(200))
	s.load()
	s.press("n", "end", "home")
	for range 39 {
		s.press("down")
	}
	require.Equal(t, "gpu-039", s.cursor.Node)
	assert.Contains(t, s.names(), "gpu-039")
	s.source.fleet = testFleet(200)
	s.source.fleet.Nodes = s.source.fleet.Nodes[30:]
	s.load()
	assert.Equal(t, "gpu-039", s.cursor.Node)
	assert.Contains(t, s.names(), "gpu-039")
	s.press("end")
	assert.Equal(t, "gpu-199", s.cursor.Node)
	assert.Len(t, s.names(), s.rows(), "the last page is full")
	s.press("home", "up")
	assert.Equal(t, "gpu-030", s.cursor.Node)
	s.source.fleet = &Fleet{At: t0}
	s.load()
	s.press("down", "enter", "end")
	assert.Contains(t, s.text(), "no node")
}

// The end of a node's detail is the end: the next key up moves it.
func TestDetailScrollsBackFromItsEnd(t *testing.T) {
	s := newScreen(t, testFleet(40))
	s.load()
	s.press("enter")
	detail := *s.source.fleet.Nodes[0]
	detail.Node, detail.Cluster = s.cursor.Node, s.cursor.Cluster
	gpus := make([]fleetclient.GPU, 64)
	for i := range gpus {
		gpus[i].Index = new(int64(100 + i))
	}
	detail.Gpus = &gpus
	s.source.fleet.Detail = &detail
	s.load()
	s.press("end")
	end := s.text()
	assert.Contains(t, end, "163")
	s.press("up")
	assert.NotEqual(t, end, s.text())
	s.press("down", "down", "down")
	assert.Equal(t, end, s.text())
	s.press("up")
	assert.NotEqual(t, end, s.text())
}

func TestFilter(t *testing.T) {
	s := newScreen(t, testFleet(40))
	s.load()
	s.press("/", "M", "I", "S", "S", "enter")
	assert.Equal(t, []string{"gpu-003"}, s.names())
	s.press("enter")
	assert.Equal(t, &Key{"prod", "gpu-003"}, s.source.detail)
	s.press("esc")
	assert.Len(t, s.nodes, 1, "the detail ends before the filter does")
	s.press("esc")
	assert.Len(t, s.nodes, 40)
	s.press("/", "q", "x", "backspace", "backspace", "3", "9")
	assert.Equal(t, []string{"gpu-039"}, s.names(), "q is a letter here")
}

// TestNothingNeedsAttention: unjudged nodes are shown, so that they do not look well.
func TestNothingNeedsAttention(t *testing.T) {
	f := testFleet(20)
	f.Attention.Items, f.Attention.Total = nil, 0
	s := newScreen(t, f)
	s.load()
	assert.Contains(t, s.text(), "NEEDS ATTENTION  nothing\n3 nodes of job-7 are not judged")
	s.press("tab")
	assert.Contains(t, s.text(), "not judged: they have too few peers")
}

// TestTheListKeepsRoomForTheNodes, and takes what they leave.
func TestTheListKeepsRoomForTheNodes(t *testing.T) {
	s := newScreen(t, testFleet(200))
	s.load()
	for height := 12; height < 60; height++ {
		s.send(tea.WindowSizeMsg{Width: 80, Height: height})
		require.GreaterOrEqual(t, s.rows(), (height-above-below)*2/5, "%d lines", height)
		require.Len(t, strings.Split(s.text(), "\n"), height)
	}
	assert.NotContains(t, s.text(), "more: tab")
	f := testFleet(18)
	f.Nodes = f.Nodes[15:]
	s.source.fleet = f
	s.load()
	s.send(tea.WindowSizeMsg{Width: 80, Height: 24})
	assert.NotContains(t, s.text(), "more: tab", "three nodes leave room for all")
}

// TestANodeAmongOthers: the detail shows the item of the node's group.
func TestANodeAmongOthers(t *testing.T) {
	s := newScreen(t, testFleet(20))
	s.load()
	s.press("down")
	s.source.fleet.Detail = s.source.fleet.Nodes[6]
	s.press("enter")
	assert.Contains(t, s.text(), "critical for 2h: group fault, costs ≤16 GPUs\n  what    2 nodes fell behind together.\n  next    Look at what they share.")
	s.press("tab", "esc")
	assert.Contains(t, s.text(), "judges itself by", "back to the node")
	s.press("?", "?", "esc")
	assert.Contains(t, s.text(), "NEEDS ATTENTION (4), worst first")
}

func TestQuits(t *testing.T) {
	for _, keys := range [][]string{{"q"}, {"/", "ctrl+c"}, {"enter", "q"}} {
		s := newScreen(t, testFleet(1+17))
		s.load()
		s.press(keys[:len(keys)-1]...)
		cmd := s.send(pressed(keys[len(keys)-1]))
		require.NotNil(t, cmd, keys)
		assert.Equal(t, tea.Quit(), cmd())
	}
}

// TestOneLoadAtATime: a gateway that hangs is not asked again and again.
func TestOneLoadAtATime(t *testing.T) {
	s := newScreen(t, testFleet(20))
	s.o.Interval = time.Nanosecond
	assert.Equal(t, tickMsg{}, s.send(tickMsg{})(), "nothing but the next tick: the first load is still under way")
	s.press("r")
	assert.Zero(t, s.source.loads)
	s.load()
	s.press("r")
	assert.Equal(t, 2, s.source.loads)
	s.send(tickMsg{})
	assert.True(t, s.loading)
}

// TestNamesCannotWriteToTheTerminal: names come from any client that can push.
func TestNamesCannotWriteToTheTerminal(t *testing.T) {
	f := testFleet(20)
	evil := "\x1b]0;owned\x07\x1b[2J\r\n\u202e"
	n := f.Nodes[17]
	n.Node, n.Group, n.State, n.Cluster = evil, &evil, new(fleetclient.NodeState(evil)), evil
	n.Signals = []fleetclient.Signal{{Signal: evil}}
	n.Gpus = &[]fleetclient.GPU{{UUID: evil, UpReason: &evil, Up: new(false), ThrottleReasons: []string{evil}, Allocations: &[]fleetclient.Holder{{Job: &evil}}}}
	f.Episodes[0].Cluster, f.Episodes[0].Node, (*f.Episodes[0].Evidence)[0].Fact = evil, &evil, evil
	i := &f.Attention.Items[0]
	i.Cluster, i.Node, i.Part, i.What, i.Why, i.Next, i.Reason, f.Attention.Waiting[0] = evil, &evil, &evil, evil, &evil, evil, &evil, evil
	i.Kind, i.Severity = fleetclient.AttentionItemKind(evil), fleetclient.AttentionItemSeverity(evil)
	f.Detail, f.Summary.Clusters = n, 2
	s := newScreen(t, f)
	s.load()
	s.send(tea.WindowSizeMsg{Width: 150, Height: 50})
	for _, view := range []string{s.text(), func() string { s.press("enter"); return s.text() }(), func() string { s.press("tab"); return s.text() }()} {
		assert.NotContains(t, view, "\x1b")
		assert.NotContains(t, view, "\r")
		assert.NotContains(t, view, "\u202e")
		assert.Contains(t, view, "owned")
	}
}
