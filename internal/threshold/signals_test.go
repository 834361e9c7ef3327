// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

var params = rounded(straggler.Params{
	Centre: 0.0521, Relative: true, MinGap: 0.05, Scale: 0.012, Burst: true, Wander: 0.002, Step: 0.05, Offset: -0.001, MaxBias: 0.025,
	Limits: [...]float64{18.5, 15.25, -64}, Elapsed: 10 * time.Second, Born: time.UnixMilli(1_780_000_000_000).UTC(),
})

func rounded(p straggler.Params) straggler.Params {
	p.Round()
	return p
}

func withSignals(group string) Value {
	v := value(group)
	upper := params
	upper.Centre = 0.09375
	v.Signals = []SignalParams{
		{Signal: nodesignal.Throughput, Params: params},
		{Signal: nodesignal.Throughput, From: 0.0703125, By: nodesignal.Compute, HasFrom: true, Params: upper},
		{Signal: nodesignal.Compute, Params: rounded(straggler.Params{Centre: 1, High: true, MinGap: 0.25, Scale: 0.01, Limits: [...]float64{11, 9, 12}})},
	}
	return v
}

func header(t *testing.T, values ...Value) string {
	c := &Cluster{Groups: map[string]*Entry{}}
	var groups []string
	for _, v := range values {
		e, err := NewEntry(v)
		require.NoError(t, err)
		c.Groups[v.Group] = e
		groups = append(groups, v.Group)
	}
	return c.params(groups)
}

func TestSignalsRoundTrip(t *testing.T) {
	odd, plain := withSignals(`odd "name" \ with; commas, =?0`), value("plain")
	odd.Ref, plain.Ref = 0.25, 0.5
	odd.Hold, odd.Settled = true, true
	got, err := ParseParams([]string{header(t, odd, plain)})
	require.NoError(t, err)
	assert.Equal(t, []Value{odd, plain}, got)

	text := header(t, withSignals("g"))
	assert.Contains(t, text, `, "g";sig=throughput;v=1790000000000;d=10000;rel;m="0.09375";g="0.05";s="0.012";burst;w="0.002";q="0.05";o="-0.001";b="0.025";h="18.5 15.25 -64";born=1780000000000;by=compute;from="0.0703125", "g";sig=compute;v=`)
	list, err := httpsfv.UnmarshalList([]string{text})
	require.NoError(t, err)
	again, err := httpsfv.Marshal(list)
	require.NoError(t, err)
	assert.Equal(t, again, text, "what is written by hand is RFC 9651's canonical form")
}

func TestAClientOfGroupsOnlySkipsNothingElse(t *testing.T) {
	text := header(t, withSignals("a"), withSignals("b"))
	before, _, _ := strings.Cut(text, "sig=")
	assert.Equal(t, 2, strings.Count(before, ";ttl="), "the groups' own members come first")
	assert.Equal(t, 2, strings.Count(text, "sig=compute"))
	assert.Less(t, strings.LastIndex(text, "sig=throughput"), strings.Index(text, "sig=compute"), "the first signals of all groups before the second")
}

func TestParamsStayWithinAHeader(t *testing.T) {
	values := make([]Value, wire.MaxGroups)
	for i := range values {
		values[i] = withSignals(fmt.Sprintf("group-%02d-%s", i, strings.Repeat("x", 100)))
	}
	text := header(t, values...)
	assert.LessOrEqual(t, len(text), wire.MaxHeaderBytes)
	assert.Greater(t, len(text), wire.MaxHeaderBytes-400)
	got, err := ParseParams([]string{text})
	require.NoError(t, err)
	require.Len(t, got, wire.MaxGroups)
	signals := 0
	for _, v := range got {
		signals += len(v.Signals)
		require.NotEmpty(t, v.Signals, "each group has its first signal before any has its third")
	}
	assert.Less(t, signals, 3*wire.MaxGroups)

	long := make([]Value, wire.MaxGroups)
	for i := range long {
		long[i] = value(fmt.Sprintf("%02d%s", i, strings.Repeat(`"`, wire.MaxNameLength-2)))
	}
	assert.LessOrEqual(t, len(header(t, long...)), wire.MaxHeaderBytes, "escaped names are twice as long")
}

func TestHostileSignals(t *testing.T) {
	own := `"g";v=7;q;t="0.9";m="1";s="0";k="2";n=5;ttl=50`
	good := `"g";sig=compute;v=7;d=10000;m="1";g="0.05";s="0.01";b="0.02";h="11 9 12"`
	for name, tc := range map[string]struct {
		member string
		silent bool
	}{
		"a signal of tomorrow":      {strings.Replace(good, "compute", "flux", 1), true},
		"signal is a string":        {strings.Replace(good, "compute", `"compute"`, 1), false},
		"no version":                {strings.Replace(good, "v=7;", "", 1), false},
		"another tick's":            {strings.Replace(good, "v=7", "v=6", 1), false},
		"another group's":           {strings.Replace(good, `"g"`, `"x"`, 1), false},
		"a token for a name":        {strings.Replace(good, `"g"`, `g`, 1), false},
		"no centre":                 {strings.Replace(good, `m="1";`, "", 1), false},
		"infinite centre":           {strings.Replace(good, `m="1"`, `m="Inf"`, 1), false},
		"no least gap":              {strings.Replace(good, `g="0.05"`, `g="0"`, 1), false},
		"a day and more":            {strings.Replace(good, `d=10000`, `d=90000000`, 1), false},
		"of a gateway of yesterday": {`"g";sig=compute;v=7;m="1";l="1";s="0.01";k="2.5";h="8";b="0.02"`, true},
		"scale of 0":                {strings.Replace(good, `s="0.01"`, `s="0"`, 1), false},
		"a share of nothing":        {strings.Replace(good, `m="1"`, `m="0";rel`, 1), false},
		"a limit that is not":       {strings.Replace(good, `11 9`, `11 NaN`, 1), false},
		"two limits":                {strings.Replace(good, `11 9 12`, `11 9`, 1), false},
		"four limits":               {strings.Replace(good, `11 9 12`, `11 9 12 9`, 1), false},
		"one limit":                 {strings.Replace(good, `"11 9 12"`, `8`, 1), false},
		"a limit that is always on": {strings.Replace(good, `9 12`, `0 12`, 1), false},
		"bias below nothing":        {strings.Replace(good, `b="0.02"`, `b="-1.5"`, 1), false},
		"from nowhere":              {good + `;from="NaN"`, false},
		"split by what is new":      {good + `;by=colour;from="1"`, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseParams([]string{own + ", " + tc.member})
			assert.Equal(t, tc.silent, err == nil, "%v", err)
			require.Len(t, got, 1)
			assert.Equal(t, "g", got[0].Group)
			assert.Empty(t, got[0].Signals)
		})
	}
	got, err := ParseParams([]string{own + `;new="x", ` + good + ";new=?0;newer=1.5"})
	require.NoError(t, err)
	assert.Len(t, got[0].Signals, 1, "parameters of tomorrow are ignored")
	got, err = ParseParams([]string{own + ", " + strings.TrimSuffix(strings.Repeat(good+", ", MaxSignals+9), ", ")})
	require.Error(t, err)
	assert.Len(t, got[0].Signals, MaxSignals)

	_, err = ParseParams([]string{strings.TrimSuffix(strings.Repeat(`"x";sig=cpu, `, maxMembers), ", ")})
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 2000, "what a stranger sends does not fill the log")

	for name, change := range map[string]func(*SignalParams){
		"scale":  func(p *SignalParams) { p.Scale = 0 },
		"limit":  func(p *SignalParams) { p.Limits[1] = math.NaN() },
		"signal": func(p *SignalParams) { p.Signal = nodesignal.Count },
	} {
		v := withSignals("g")
		change(&v.Signals[0])
		_, err := NewEntry(v)
		assert.Error(t, err, name)
	}
}

func TestAMiddleTierHandsSignalsDown(t *testing.T) {
	var b Inbox
	in := withSignals("g")
	b.Put("c", in, start)
	c := b.Cluster("c", []string{"g"}, start.Add(20*time.Second))
	require.NotNil(t, c)
	got, err := ParseParams([]string{c.params([]string{"g"})})
	require.NoError(t, err)
	require.Len(t, got, 1)
	assert.Equal(t, in.Signals, got[0].Signals)
	assert.Equal(t, 30*time.Second, got[0].TTL)
}

func TestInboxRemembersWhenAVersionWasFirstHeard(t *testing.T) {
	var b Inbox
	b.Put("c", value("g"), start)
	b.Put("c", value("g"), start.Add(time.Second))
	got, _ := b.Get("c", "g")
	assert.Equal(t, start, got.First)
	assert.Zero(t, got.After)
	assert.Equal(t, start.Add(time.Second), got.At)
	newer := value("g")
	newer.Version++
	b.Put("c", newer, start.Add(2*time.Second))
	got, _ = b.Get("c", "g")
	assert.Equal(t, start.Add(2*time.Second), got.First)
	assert.Equal(t, start.Add(time.Second), got.After)
	newer.TTL = time.Second
	b.Put("c", newer, start.Add(3*time.Second))
	newer.Version++
	b.Put("c", newer, start.Add(4*time.Second))
	got, _ = b.Get("c", "g")
	assert.Equal(t, start.Add(3*time.Second), got.After, "heard again, if from a middle tier")
}

func BenchmarkRespond(b *testing.B) {
	e, _ := NewEntry(withSignals("AR/stage-0"))
	c := &Cluster{Groups: map[string]*Entry{"AR/stage-0": e}}
	groups, names := []string{"AR/stage-0"}, &wire.Names{Params: "gpu-straggler-params"}
	var dst []wire.Header
	b.ReportAllocs()
	for b.Loop() {
		dst = c.Respond(dst[:0], names, groups)
	}
}

// TestAnySingleTravels: nine digits tell a float32 from all others.
func TestAnySingleTravels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Float32Range(math.SmallestNonzeroFloat32, math.MaxFloat32)
		draw := func(name string) float64 { return float64(number.Draw(t, name)) }
		v := value("g")
		upTo := func(name string, most float32) float64 { return float64(rapid.Float32Range(1e-3, most).Draw(t, name)) }
		v.Signals = []SignalParams{{From: -draw("from"), HasFrom: true, Params: straggler.Params{
			Centre: draw("centre"), Relative: rapid.Bool().Draw(t, "relative"), High: rapid.Bool().Draw(t, "high"), MinGap: upTo("gap", 1),
			Scale: upTo("scale", 1e9), Burst: rapid.Bool().Draw(t, "burst"), Wander: upTo("wander", 1e9), Step: upTo("step", 1e9),
			Offset: -upTo("offset", 1e9), MaxBias: upTo("bias", 1e9), Elapsed: time.Duration(rapid.IntRange(0, 1e6).Draw(t, "elapsed")) * time.Millisecond,
			Limits: [...]float64{upTo("loud", 1e9), upTo("mid", 1e9), -upTo("low", 1e9)},
		}}}
		e, err := NewEntry(v)
		require.NoError(t, err)
		got, err := ParseParams([]string{(&Cluster{Groups: map[string]*Entry{"g": e}}).params([]string{"g"})})
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, v.Signals, got[0].Signals)
	})
}
