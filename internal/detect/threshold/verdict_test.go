// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

var slow = Verdict{Node: "slow", Since: time.Unix(1789999990, 0).UTC(), Loss: 0.12, Signal: nodesignal.Throughput}

// judged is the value of a gateway that gives verdicts.
func judged(group string, stragglers ...Verdict) Value {
	v := value(group)
	v.Ref, v.All = 0.5, true
	v.Verdicts = NewVerdicts(group, v.Version, stragglers)
	return v
}

// answer is what a client of these groups gets, and what it makes of it.
func answer(t *testing.T, c *Cluster, node string, groups ...string) (headers map[string]string, values []Value) {
	headers = map[string]string{}
	for _, h := range c.Respond(nil, node, groups) {
		headers[h.Name] = h.Value
	}
	verdicts := []string{}
	if h := headers[gpusemconv.HeaderVerdict]; h != "" {
		verdicts = append(verdicts, h)
	}
	values, err := ParseAnswer([]string{headers[gpusemconv.HeaderParams]}, verdicts, node)
	require.NoError(t, err)
	return headers, values
}

func clusterOf(t require.TestingT, values ...Value) *Cluster {
	c := &Cluster{Groups: map[string]*Entry{}}
	for _, v := range values {
		e, err := NewEntry(v)
		require.NoError(t, err)
		c.Groups[v.Group] = e
	}
	return c
}

func TestVerdictsCrossTheWire(t *testing.T) {
	quoted := `odd "name" \ with; commas, =?0`
	in := []Value{
		judged(quoted, Verdict{Node: quoted, Loss: 0.0833, Signal: nodesignal.Count}),
		judged("g", Verdict{Node: "less", Loss: 0.05, Signal: nodesignal.CPU}, slow, Verdict{Node: "nöde", Loss: 1}),
	}
	c := clusterOf(t, in...)
	headers, got := answer(t, c, "", quoted, "g")
	assert.Equal(t, in, got)
	assert.True(t, strings.HasPrefix(headers[gpusemconv.HeaderVerdict], `"slow";g="g";v=1790000000000;since=1789999990;loss="0.12";sig=throughput, "odd `), "greatest loss first: %s", headers[gpusemconv.HeaderVerdict])
	for _, text := range headers {
		list, err := httpsfv.UnmarshalList([]string{text})
		require.NoError(t, err)
		again, err := httpsfv.Marshal(list)
		require.NoError(t, err)
		assert.Equal(t, again, text, "what is written by hand is RFC 9651's canonical form")
	}
	verdict, straggler, known := got[1].Of("slow")
	assert.Equal(t, slow, verdict)
	assert.True(t, straggler && known)
	_, straggler, known = got[1].Of("other")
	assert.True(t, !straggler && known, "in good standing")
	_, _, known = got[1].Of("nöde")
	assert.False(t, known, "no list can name it")

	// One node gets its own verdict, and its answer knows no other.
	headers, got = answer(t, c, "slow", "g")
	assert.Equal(t, `"slow";g="g";v=1790000000000;since=1789999990;loss="0.12";sig=throughput`, headers[gpusemconv.HeaderVerdict])
	_, _, known = got[0].Of("less")
	assert.False(t, known)
	_, handed := answer(t, clusterOf(t, got[0]), "", "g")
	assert.False(t, handed[0].All)
	headers, got = answer(t, c, "other", "g")
	assert.NotContains(t, headers, gpusemconv.HeaderVerdict)
	_, straggler, known = got[0].Of("other")
	assert.True(t, !straggler && known)

	// A gateway without verdicts knows no node.
	_, got = answer(t, clusterOf(t, value("g")), "slow", "g")
	_, _, known = got[0].Of("slow")
	assert.False(t, known)
}

func TestVerdictsStayWithinAHeader(t *testing.T) {
	values := make([]Value, pushheaders.MaxGroups)
	var groups []string
	for i := range values {
		var all []Verdict
		for n := range 20 + i {
			all = append(all, Verdict{Node: fmt.Sprintf("node-%02d-%02d", i, n), Loss: float64(n+1) / 100, Signal: nodesignal.Power})
		}
		values[i] = judged(fmt.Sprintf("group-%02d", i), all...)
		groups = append(groups, values[i].Group)
	}
	values[0] = judged(groups[0], Verdict{Node: "worst", Loss: 0.9})
	c := clusterOf(t, values...)
	headers, got := answer(t, c, "", groups...)
	size := len(headers[gpusemconv.HeaderParams]) + len(headers[gpusemconv.HeaderVerdict])
	assert.LessOrEqual(t, size, pushheaders.MaxHeaderBytes, "together")
	assert.Greater(t, size, pushheaders.MaxHeaderBytes-200)
	require.Len(t, got, pushheaders.MaxGroups)
	least, listed := 1.0, 0
	for _, v := range got {
		for _, x := range v.Verdicts.List() {
			least = min(least, x.Loss)
			listed++
		}
		_, _, known := v.Of("unlisted")
		assert.Equal(t, v.Group == groups[0], known, "an unlisted node of a group that is cut is not known")
	}
	assert.Greater(t, listed, 50)
	assert.Greater(t, least, 0.2, "the greatest losses of all")

	long := make([]Value, pushheaders.MaxGroups)
	groups = nil
	for i := range long {
		long[i] = judged(fmt.Sprintf("%02d%s", i, strings.Repeat(`"`, pushheaders.MaxNameLength-2)), slow)
		groups = append(groups, long[i].Group)
	}
	headers, _ = answer(t, clusterOf(t, long...), slow.Node, groups...)
	assert.LessOrEqual(t, len(headers[gpusemconv.HeaderParams])+len(headers[gpusemconv.HeaderVerdict]), pushheaders.MaxHeaderBytes, "escaped names are twice as long")
}

func TestHostileVerdicts(t *testing.T) {
	const own, good = `"g";v=7;q;t="0.9";m="1";s="0";k="2";n=5;ttl=50;all`, `"n";g="g";v=7;since=1789999990;loss="0.12";sig=throughput`
	for name, bad := range map[string]string{
		"another tick's":      strings.Replace(good, "v=7", "v=6", 1),
		"another group's":     strings.Replace(good, `g="g"`, `g="x"`, 1),
		"no group":            strings.Replace(good, `g="g";`, "", 1),
		"no version":          strings.Replace(good, "v=7;", "", 1),
		"no loss":             strings.Replace(good, `loss="0.12";`, "", 1),
		"infinite loss":       strings.Replace(good, "0.12", "+Inf", 1),
		"a gain":              strings.Replace(good, "0.12", "-0.12", 1),
		"since ever":          strings.Replace(good, "1789999990", "-5", 1),
		"a year of 12 digits": strings.Replace(good, "1789999990", "999999999999999", 1),
		"signal is a string":  strings.Replace(good, "throughput", `"throughput"`, 1),
		"a token for a name":  strings.Replace(good, `"n"`, "n", 1),
		"an inner list":       `("n");g="g";v=7`,
		"no list":             "\x00",
		"too long":            strings.Repeat(good+", ", 200) + good,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseAnswer([]string{own}, []string{bad}, "")
			require.Error(t, err)
			assert.Less(t, len(err.Error()), 2000, "what a stranger sends does not fill the log")
			require.Len(t, got, 1, "the threshold counts")
			_, straggler, known := got[0].Of("n")
			assert.False(t, straggler || known, "nothing is known of any node")
		})
	}
	got, err := ParseAnswer([]string{own + ";new"}, []string{strings.Replace(good, "throughput", "flux;new=1.5", 1)}, "")
	require.NoError(t, err)
	verdict, straggler, _ := got[0].Of("n")
	assert.True(t, straggler, "by a signal of tomorrow")
	assert.Equal(t, nodesignal.Count, verdict.Signal)
}

func FuzzParseAnswer(f *testing.F) {
	var headers []string
	for _, h := range clusterOf(f, judged("AR/stage-0", slow)).Respond(nil, "", []string{"AR/stage-0"}) {
		headers = append(headers, h.Value)
	}
	f.Add(headers[0], headers[1])
	f.Add(`"x";v=1;q=?0;t=0.5;m=1;s=0;k=2;n=5;ttl=50;all`, `"a";g="x";v=1;loss=3, "a";g="x";v=1;loss=4;sig=flux`)
	f.Add(`("a" "b");x`, `("a" "b");x`)
	f.Fuzz(func(t *testing.T, params, verdicts string) {
		values, _ := ParseAnswer([]string{params}, []string{verdicts}, "")
		for _, v := range values {
			require.NoError(t, v.Validate())
			c := clusterOf(t, v)
			response := c.Respond(nil, "", []string{v.Group})
			require.NotEmpty(t, response)
			again := []string{}
			if len(response) > 1 {
				again = append(again, response[1].Value)
			}
			back, err := ParseAnswer([]string{response[0].Value}, again, "")
			require.NoError(t, err)
			require.Len(t, back, 1)
			for _, x := range back[0].Verdicts.List() {
				was, straggler, _ := v.Of(x.Node)
				require.True(t, straggler)
				require.Equal(t, was.Since, x.Since)
			}
		}
	})
}

// TestAMiddleTierHandsVerdictsDown as their group's value, of which a newer tick ends them.
func TestAMiddleTierHandsVerdictsDown(t *testing.T) {
	var b Inbox
	in, newer := judged("g", slow), judged("g")
	newer.Version++
	for i, v := range []Value{in, newer, in} { // the last is late
		b.Put("c", v, start)
		_, got := answer(t, b.Cluster("c", []string{"g"}, start.Add(3*time.Second)), "slow", "g")
		verdict, straggler, known := got[0].Of("slow")
		assert.True(t, known)
		assert.Equal(t, i == 0, straggler)
		assert.Equal(t, i == 0, verdict == slow)
	}
}

func BenchmarkRespond(b *testing.B) {
	c := clusterOf(b, judged("AR/stage-0", slow))
	groups := []string{"AR/stage-0"}
	var dst []pushheaders.Header
	b.ReportAllocs()
	for b.Loop() {
		dst = c.Respond(dst[:0], "slow", groups)
	}
}
