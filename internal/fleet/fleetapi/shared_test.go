// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// fastClient reads everything at once.
type fastClient struct {
	header http.Header
	text   bytes.Buffer
	keep   bool
}

func (c *fastClient) Header() http.Header              { return c.header }
func (c *fastClient) WriteHeader(int)                  {}
func (c *fastClient) Flush()                           {}
func (c *fastClient) SetWriteDeadline(time.Time) error { return nil }
func (c *fastClient) Write(text []byte) (int, error) {
	if c.keep {
		c.text.Write(text)
	}
	return len(text), nil
}

func follow(tb testing.TB, a *API, f fleetstate.Filter, gpus bool) (*stream, *fastClient) {
	tb.Helper()
	w := a.o.Feed.Watch(f)
	tb.Cleanup(w.Close)
	c := &fastClient{header: http.Header{}}
	s := &stream{a: a, w: w, form: map[bool]form{true: formNodeWithGPUs}[gpus], writer: c, control: http.NewResponseController(c)}
	require.NoError(tb, s.snapshot())
	return s, c
}

// TestFurtherClientsCostNothing: nodes are encoded once for all clients, filtered or not.
func TestFurtherClientsCostNothing(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	var encoded []int
	for _, f := range []fleetstate.Filter{{}, {}, {States: []string{"active"}}} {
		s, _ := follow(t, a, f, true)
		a.o.Feed.Advance(t0)
		require.NoError(t, s.changes())
		encoded = append(encoded, a.sharing().bytes)
	}
	assert.Equal(t, []int{encoded[0], encoded[0], encoded[0]}, encoded)
	assert.Positive(t, encoded[0])
}

// TestSharedIsWhatEachWouldGet has clients that look before and after a change
// and a sign of life, while the encoded nodes are shared.
func TestSharedIsWhatEachWouldGet(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	read := func(s *stream, c *fastClient) (d Diff) {
		t.Helper()
		c.keep = true
		c.text.Reset()
		require.NoError(t, s.changes())
		for line := range strings.Lines(c.text.String()) {
			if text, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(line, "changed") {
				require.NoError(t, json.Unmarshal([]byte(text), &d))
			}
		}
		return d
	}
	plain, p := follow(t, a, fleetstate.Filter{}, false)
	detailed, q := follow(t, a, fleetstate.Filter{}, true)
	late, l := follow(t, a, fleetstate.Filter{}, false)
	a.o.Feed.Advance(t0)
	one, two := read(plain, p), read(detailed, q)
	require.Len(t, one.Changed, 3)
	assert.Nil(t, one.Changed[0].GPUs)
	assert.Len(t, two.Changed[0].GPUs, 2)
	assert.InDelta(t, 2, one.Changed[0].AgeSeconds, 0)
	put(a, "c1", "n1", t0.Add(-time.Second), nil)
	put(a, "c1", "n2", t0.Add(-time.Second), func(u *fleetstate.Update) { u.Set(reading.NodeHealthScore, 0.25) })
	three := read(late, l)
	assert.InDelta(t, 1, three.Changed[0].AgeSeconds, 0, "the sign of life is newer")
	assert.InDelta(t, 0.25, *three.Changed[1].Score, 0, "and so is the view")
	assert.Equal(t, get200[NodePage](t, a, "/api/v1/nodes").Nodes, three.Changed)
}

// TestMissingSinceTheFrame: a client that comes right after a node went missing gets that state,
// though the shared ages are older.
func TestMissingSinceTheFrame(t *testing.T) {
	clock := t0
	a := newAPI(func(o *Options) { o.Now = func() time.Time { return clock } })
	put(a, "c", "n", t0, nil)
	first, _ := follow(t, a, fleetstate.Filter{}, false)
	clock = t0.Add(fleetstate.DefaultConfig().MissingAfter)
	require.NoError(t, first.snapshot())
	a.o.Feed.Advance(clock.Add(sharedFor / 2))
	second, c := follow(t, a, fleetstate.Filter{}, false)
	c.keep = true
	require.NoError(t, second.snapshot())
	assert.Contains(t, c.text.String(), `"state":"missing"`)
}

// TestWhatIsSharedIsBounded: nothing is kept beyond the bound, and nothing after
// the last client.
func TestWhatIsSharedIsBounded(t *testing.T) {
	a := newAPI(nil)
	fleet(a)
	s, _ := follow(t, a, fleetstate.Filter{}, false)
	sh := a.sharing()
	assert.Positive(t, sh.bytes)
	sh.bytes = sharedBytes
	put(a, "c1", "n3", t0, nil)
	require.NoError(t, s.snapshot())
	n := 0
	sh.nodes[formNode].Range(func(any, any) bool {
		n++
		return true
	})
	assert.Equal(t, 3, n)
	other := a.o.Feed.Watch(fleetstate.Filter{})
	a.unwatch(other)
	assert.NotNil(t, a.shared.Load())
	a.unwatch(s.w)
	assert.Nil(t, a.shared.Load())
}

// TestEventsAreBounded: nodes with many GPUs make smaller events.
func TestEventsAreBounded(t *testing.T) {
	a := newAPI(nil)
	for i := range 20 {
		put(a, "c", fmt.Sprintf("n%02d", i), t0, func(u *fleetstate.Update) {
			for g := range 64 {
				u.SetGPU(u.GPU(fmt.Sprintf("GPU-%d-%d", i, g)), reading.Power, 1)
			}
		})
	}
	s, c := follow(t, a, fleetstate.Filter{}, true)
	c.keep = true
	require.NoError(t, s.snapshot())
	a.o.Feed.Advance(t0)
	require.NoError(t, s.changes())
	events := strings.Split(strings.TrimSuffix(c.text.String(), "\n\n"), "\n\n")
	one, err := json.Marshal(get200[Node](t, a, "/api/v1/nodes/n00"))
	require.NoError(t, err)
	assert.Greater(t, len(events), 6)
	for _, e := range events {
		assert.Less(t, len(e), maxEventBytes+len(one)+200)
	}
}
