// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func value(group string) Value {
	return Value{
		Group: group, Version: 1790000000000, Threshold: 0.870348, QuorumMet: true,
		Median: 0.93, Scale: 0.012, K: 2, Nodes: 64, Ref: 1.0 / 19.2, TTL: 50 * time.Second,
	}
}

func TestMemberRoundTrip(t *testing.T) {
	in := value("AR/stage-0")
	member, err := EncodeMember(in)
	require.NoError(t, err)
	assert.Equal(t, `"AR/stage-0";v=1790000000000;q;t="0.870348";m="0.93";s="0.012";k="2";n=64;ref="0.0520833333";ttl=50`, member)

	other := value(`odd "name" \ with, commas`)
	other.QuorumMet, other.Ref = false, 0
	second, err := EncodeMember(other)
	require.NoError(t, err)

	got, err := ParseAnswer([]string{member + ", " + second}, nil, "")
	require.NoError(t, err)
	require.Len(t, got, 2)
	assert.InDelta(t, in.Ref, got[0].Ref, 1e-9)
	in.Ref = got[0].Ref
	assert.Equal(t, []Value{in, other}, got)
}

func TestAnAnswersValidMembersCount(t *testing.T) {
	good, err := EncodeMember(value("good"))
	require.NoError(t, err)
	for name, bad := range map[string]string{
		"not in the unit interval": `"x";v=1;q;t="1.5";m="1";s="0";k="2";n=5;ttl=50`,
		"not a number":             `"x";v=1;q;t="NaN";m="1";s="0";k="2";n=5;ttl=50`,
		"infinite":                 `"x";v=1;q;t="0.9";m="1";s="+Inf";k="2";n=5;ttl=50`,
		"no threshold":             `"x";v=1;q;m="1";s="0";k="2";n=5;ttl=50`,
		"no ttl":                   `"x";v=1;q;t="0.9";m="1";s="0";k="2";n=5`,
		"endless ttl":              `"x";v=1;q;t="0.9";m="1";s="0";k="2";n=5;ttl=999999999999`,
		"negative node count":      `"x";v=1;q;t="0.9";m="1";s="0";k="2";n=-5;ttl=50`,
		"wrong type":               `"x";v="one";q;t="0.9";m="1";s="0";k="2";n=5;ttl=50`,
		"a token for a name":       `x;v=1;q;t="0.9";m="1";s="0";k="2";n=5;ttl=50`,
		"an inner list":            `("x");v=1`,
		"an empty name":            `"";v=1;q;t="0.9";m="1";s="0";k="2";n=5;ttl=50`,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseAnswer([]string{bad, good}, nil, "")
			require.Error(t, err)
			require.Len(t, got, 1)
			assert.Equal(t, "good", got[0].Group)
		})
	}
}

func TestParsePlain(t *testing.T) {
	v, err := ParsePlain(" 0.870348 ", "true")
	require.NoError(t, err)
	assert.Equal(t, Value{Threshold: 0.870348, QuorumMet: true}, v)
	for _, bad := range []string{"", "NaN", "inf", "-0.1", "1.0001", "0,9", strings.Repeat("9", 1000)} {
		_, err := ParsePlain(bad, "true")
		require.Error(t, err, bad)
	}
	_, err = ParsePlain("1", "yes")
	require.Error(t, err)
}

func TestNewEntryRefusesWhatMustNotBePublished(t *testing.T) {
	for name, change := range map[string]func(*Value){
		"threshold": func(v *Value) { v.Threshold = math.NaN() },
		"median":    func(v *Value) { v.Median = 1.1 },
		"scale":     func(v *Value) { v.Scale = math.Inf(1) },
		"k":         func(v *Value) { v.K = -1 },
		"ref":       func(v *Value) { v.Ref = -1 },
		"nodes":     func(v *Value) { v.Nodes = -1 },
		"ttl":       func(v *Value) { v.TTL = 0 },
		"group":     func(v *Value) { v.Group = "ümlaut" },
	} {
		v := value("g")
		change(&v)
		_, err := NewEntry(v)
		assert.Error(t, err, name)
	}
}

func TestStoreStopsServingWhatIsOld(t *testing.T) {
	var s Store
	assert.Nil(t, s.Cluster("c", start))
	e, err := NewEntry(value("g"))
	require.NoError(t, err)
	s.Publish(&Snapshot{At: start, TTL: time.Minute, Clusters: map[string]*Cluster{"c": {Groups: map[string]*Entry{"g": e}}}})
	require.NotNil(t, s.Cluster("c", start.Add(time.Minute)))
	assert.Same(t, e, s.Cluster("c", start).Groups["g"])
	assert.Nil(t, s.Cluster("other", start))
	assert.Nil(t, s.Cluster("c", start.Add(time.Minute+1)))
}

func TestInboxTakesOnlyNewerUntilExpiry(t *testing.T) {
	var b Inbox
	newer, older := value("g"), value("g")
	newer.Version, newer.Threshold = 2, 0.8
	older.Version, older.Threshold = 1, 0.7

	assert.True(t, b.Put("c", newer, start))
	assert.False(t, b.Put("c", older, start), "a late answer")
	got, ok := b.Get("c", "g")
	require.True(t, ok)
	assert.InDelta(t, 0.8, got.Threshold, 0)

	newest := newer
	newest.Version = 3
	assert.True(t, b.Put("c", newest, start))
	newer = newest
	assert.False(t, b.Put("c", newer, start.Add(40*time.Second)))
	got, _ = b.Get("c", "g")
	assert.True(t, got.Fresh(start.Add(80*time.Second)), "an unchanged version refreshes")

	shrunken := newer
	shrunken.TTL = 5 * time.Second
	assert.False(t, b.Put("c", shrunken, start.Add(80*time.Second)))
	got, _ = b.Get("c", "g")
	assert.False(t, got.Fresh(start.Add(91*time.Second)), "what a middle tier hands down does not outlive the gateway")

	assert.True(t, b.Put("c", older, start.Add(91*time.Second)), "after expiry any version counts")
	_, ok = b.Get("c", "elsewhere")
	assert.False(t, ok)
}

func TestInboxIsBounded(t *testing.T) {
	var b Inbox
	for i := range maxInboxEntries + 10 {
		v := value("g")
		v.Version = int64(i)
		b.Put(strings.Repeat("c", i%200)+string(rune(i)), v, start.Add(time.Duration(i)))
	}
	assert.LessOrEqual(t, len(b.entries), maxInboxEntries)
}

func TestInboxHandsDownWhatIsLeft(t *testing.T) {
	var b Inbox
	assert.Nil(t, b.Cluster("c", []string{"g"}, start))
	wide := value("")
	b.Put("c", wide, start)
	b.Put("c", value("g"), start)
	c := b.Cluster("c", []string{"g", "other"}, start.Add(20*time.Second))
	require.NotNil(t, c)
	require.Len(t, c.Groups, 1)
	assert.Equal(t, 30*time.Second, c.Groups["g"].TTL)
	assert.InDelta(t, wide.Threshold, c.Wide.Threshold, 0)
	assert.Nil(t, b.Cluster("c", []string{"g"}, start.Add(49*time.Second+1)), "a dead threshold is not handed down")
}

func TestStandingCrossesTheWire(t *testing.T) {
	s := Standing{Node: `odd "name"`, Group: `a \ b`, Active: 2, Needed: 3, Why: unjudged.FewPeers}
	for why := range unjudged.Count {
		s.Why = why
		text := s.Encode()
		got, err := ParseStanding([]string{text})
		require.NoError(t, err)
		assert.Equal(t, &s, got)
		list, err := httpsfv.UnmarshalList([]string{text})
		require.NoError(t, err)
		again, err := httpsfv.Marshal(list)
		require.NoError(t, err)
		assert.Equal(t, again, text, "RFC 9651's canonical form")
	}
	got, err := ParseStanding([]string{(&Standing{}).Encode()})
	require.NoError(t, err)
	assert.Equal(t, &Standing{}, got, "a node that the gateway does not know")
	got, err = ParseStanding(nil)
	require.NoError(t, err)
	assert.Nil(t, got, "the next hop sends none")
	for _, bad := range []string{`"n";g="a";n=-2;need=3`, `"n";g="a";n=2;need=3;why=unheard_of`, `("n" "m");g=1`, `"n"`, "\xff"} {
		got, err = ParseStanding([]string{bad})
		assert.Error(t, err, "%+v", got)
	}
}
