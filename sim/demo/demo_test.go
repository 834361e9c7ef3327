// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

func lists() (early, full *fleetclient.AttentionList) {
	early = &fleetclient.AttentionList{
		Counts: fleetclient.AttentionCounts{Nodes: 48},
		Items:  []fleetclient.AttentionItem{{ID: "early", Kind: fleetclient.AttentionItemKindStraggler, Cluster: "west", Node: new("west-a4"), What: "Slower."}},
	}
	full = &fleetclient.AttentionList{Counts: early.Counts}
	for _, f := range faults {
		it := fleetclient.AttentionItem{
			ID: string(f.kind) + f.node, EpisodeID: new("e"), Kind: f.kind, Cluster: f.cluster, Node: new(f.node), What: "What.", Why: new("Why."), Next: "Next.",
		}
		if f.node == "" {
			it.Node, it.Nodes, it.Group = nil, &[]string{"rack3-node1", "rack3-node2"}, new("g/h")
		}
		full.Items = append(full.Items, it)
	}
	full.Items[1].Part, full.Items[1].Confidence, full.Items[1].GPUHoursLostPerHour = new("GPU 3"), new(0.714), new(12.34)
	full.Items[1].Since = new(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local))
	full.Items = append(full.Items, fleetclient.AttentionItem{ID: "x", Cluster: "a&b", Node: new("x\x1b[2J\r"), What: "W", Next: "N"})
	return early, full
}

// TestScreen: three lines a verdict, each shown once, and few lines before the first.
func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out, false, "http://127.0.0.1:1/")
	s.begin("Ports: 8086 is taken, the page has 1.")
	early, full := lists()
	for at := range 1000 {
		s.progress(time.Duration(at) * time.Second / 2)
	}
	for range settled {
		s.show(early, time.Second)
	}
	assert.LessOrEqual(t, strings.Count(out.String(), "\n"), 10)
	assert.NotContains(t, out.String(), "Slower.", "its record was on its way")
	out.Reset()
	full.Items[2].Since, full.Items[2].SinceBefore = new(time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)), new(true)
	fewer := &fleetclient.AttentionList{Counts: full.Counts, Items: slices.Clone(full.Items)}
	for i := range fewer.Items {
		fewer.Items[i].NodeCount = new(int64(2))
	}
	s.show(fewer, 35*time.Second)
	for range settled - 1 {
		s.show(full, 36*time.Second)
	}
	assert.Empty(t, out.String(), "more of it may be on its way")
	for at := range 1000 {
		s.show(full, 37*time.Second)
		s.progress(time.Hour + time.Duration(at)*time.Minute)
	}
	assert.Equal(t, ` 37 s  dp0-pp0 (demo): What.
       why:  Why.
       next: Next. http://127.0.0.1:1/#in=demo&node=dp0-pp0
 37 s  west-a4, GPU 3 (west): What. (since 03:04:05, confidence 71 %, costs 12.3 GPUs)
       why:  Why.
       next: Next. http://127.0.0.1:1/#in=west&node=west-a4
 37 s  west-a7 (west): What. (since 03:04:05 or before)
       why:  Why.
       next: Next. http://127.0.0.1:1/#in=west&node=west-a7
 37 s  west-b3 (west): What.
       why:  Why.
       next: Next. http://127.0.0.1:1/#in=west&node=west-b3
 37 s  rack3-node1, rack3-node2 (east): What.
       why:  Why.
       next: Next. http://127.0.0.1:1/#cluster=east&group=g%2Fh&show=faults
 37 s  All 5 faults are found. The demo goes on, see http://127.0.0.1:1/
 37 s  x�[2J� (a&b): W
       why:  see above
       next: N http://127.0.0.1:1/#in=a%26b&node=x%1B%5B2J%0D
`, out.String())
}

// TestTerminal: one line moves, and makes room for those that stay.
func TestTerminal(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out, true, "http://127.0.0.1:1/")
	s.progress(time.Second)
	s.progress(2 * time.Second)
	s.line("stays")
	s.progress(3 * time.Second)
	s.end()
	assert.Equal(t, "\r  1 s  0 nodes report, 0 of 5 faults are found\x1b[K\r  2 s  0 nodes report, 0 of 5 faults are found\x1b[K"+
		"\r\x1b[Kstays\n\r  3 s  0 nodes report, 0 of 5 faults are found\x1b[K\r\x1b[K", out.String())
}

// TestPorts: a port that is taken is replaced by a free one, and reported.
func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	taken := portOf(l)
	ports, moved, err := findPorts(&options{listen: "127.0.0.1", port: taken})
	require.NoError(t, err)
	assert.NotEqual(t, taken, ports[page])
	assert.Contains(t, moved, "is taken, the page has")
	seen := map[int]bool{}
	for _, p := range ports {
		assert.False(t, seen[p] || p == 0, ports)
		seen[p] = true
	}
	_, _, err = findPorts(&options{listen: "192.0.2.1", port: taken}) // of no machine
	assert.ErrorContains(t, err, "`--listen` is \"192.0.2.1\" and `--port` ")
}
