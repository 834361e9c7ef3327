// SPDX-License-Identifier: Apache-2.0

package people

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func silence(node string, until time.Duration) Silence {
	return Silence{Cluster: "c", Node: node, Reason: "psu swap", By: "ann", Until: t0.Add(until)}
}

func TestASilenceEndsByItself(t *testing.T) {
	b := New(0.5)
	s, err := b.Silence(silence("n1", time.Hour), t0)
	require.NoError(t, err)
	for _, tc := range []struct {
		of    Scope
		after time.Duration
		want  bool
	}{
		{Scope{Cluster: "c", Node: "n1"}, 0, true},
		{Scope{Cluster: "c", Node: "n1"}, time.Hour - 1, true},
		{Scope{Cluster: "c", Node: "n1"}, time.Hour, false},
		{Scope{Cluster: "d", Node: "n1"}, 0, false},
		{Scope{Cluster: "c", Node: "n2"}, 0, false},
		{Scope{Cluster: "c", Job: "n1", Group: "n1"}, 0, false},
		{Scope{Cluster: "c"}, 0, false},
	} {
		assert.Equal(t, tc.want, b.Silenced(tc.of, t0.Add(tc.after)) != nil, "%+v", tc)
	}
	again, err := b.Silence(silence("n1", time.Hour), t0.Add(time.Minute))
	require.NoError(t, err)
	assert.Equal(t, s.ID, again.ID, "the same word twice")
	assert.Len(t, b.Silences(nil, true, t0), 1)
	assert.Empty(t, b.Silences(nil, true, t0.Add(2*time.Hour)))
	assert.Len(t, b.Silences([]string{"c"}, false, t0.Add(2*time.Hour)), 1, "it is shown for a while")
	b.Expire(t0.Add(time.Hour + keepEnded))
	assert.Empty(t, b.Silences(nil, false, t0))
}

func TestJobsAndGroups(t *testing.T) {
	b := New(0.5)
	for _, s := range []Silence{{Cluster: "c", Job: "llama", Reason: "r", Until: t0.Add(time.Hour)}, {Cluster: "c", Group: "g", Reason: "r", Until: t0.Add(2 * time.Hour)}} {
		_, err := b.Silence(s, t0)
		require.NoError(t, err)
	}
	assert.Equal(t, "llama", b.Silenced(Scope{Cluster: "c", Node: "n", Job: "llama"}, t0).Job)
	assert.Equal(t, "g", b.Silenced(Scope{Cluster: "c", Node: "n", Job: "llama", Group: "g"}, t0).Group, "the one that lasts longer")
}

func TestRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		s    Silence
		want string
	}{
		"no end":      {silence("n", 0), "must be after now, 2026-03-01T12:00:00Z"},
		"too long":    {silence("n", MaxUntil+1), "a year from now"},
		"no reason":   {Silence{Cluster: "c", Node: "n", Reason: " ", Until: t0.Add(1)}, "`reason`"},
		"nothing":     {Silence{Cluster: "c", Reason: "r", Until: t0.Add(1)}, "0 of `node`, `job_id` and `group` are given, must be one"},
		"two things":  {Silence{Cluster: "c", Node: "n", Job: "j", Reason: "r", Until: t0.Add(1)}, "2 of"},
		"no cluster":  {Silence{Node: "n", Reason: "r", Until: t0.Add(1)}, "`cluster`"},
		"a long name": {Silence{Cluster: "c", Node: strings.Repeat("n", 254), Reason: "r", Until: t0.Add(1)}, "254 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			b := New(0.5)
			_, err := b.Silence(tc.s, t0)
			require.ErrorContains(t, err, tc.want)
			assert.Empty(t, b.Silences(nil, false, t0))
			log := b.Audit(nil)
			require.Len(t, log, 1)
			assert.Equal(t, Refused, log[0].Outcome)
		})
	}
}

func TestOverridesAreTold(t *testing.T) {
	b := New(0.5)
	var told []string
	b.OnAudit(func(a *Audit) { told = append(told, fmt.Sprintf("%s %s %s %v", a.By, a.Word, a.Outcome, a.Override)) })
	s, err := b.Silence(silence("n", time.Hour), t0)
	require.NoError(t, err)
	_, err = b.End(s.ID, "bob", "wrong node", t0.Add(time.Minute))
	require.NoError(t, err)
	assert.Nil(t, b.Silenced(Scope{Cluster: "c", Node: "n"}, t0.Add(time.Minute)))
	_, err = b.End(s.ID, "bob", "", t0.Add(time.Minute))
	require.ErrorContains(t, err, "is over since 2026-03-01T12:01:00Z")
	_, err = b.Acknowledge(Acknowledgement{Cluster: "c", Episode: "e", By: "ann", Reason: "on it"}, t0)
	require.NoError(t, err)
	_, err = b.Acknowledge(Acknowledgement{Cluster: "c", Episode: "e", By: "bob", Reason: "mine"}, t0)
	require.NoError(t, err)
	assert.Equal(t, "bob", b.Acknowledged("c", "e").By)
	assert.Nil(t, b.Acknowledged("d", "e"), "another cluster's of the same ID")
	assert.Equal(t, []string{"ann silence taken false", "bob end_silence taken true", "bob end_silence refused false", "ann acknowledge taken false", "bob acknowledge taken true"}, told)
}

func TestOneClusterLeavesRoom(t *testing.T) {
	b := New(0.5)
	var err error
	n := 0
	for ; err == nil; n++ {
		_, err = b.Silence(silence(fmt.Sprintf("n%d", n), time.Hour), t0)
	}
	assert.Equal(t, MaxSilences/2+1, n)
	full := &Refusal{}
	require.ErrorAs(t, err, &full)
	assert.True(t, full.Full)
	other := silence("n", time.Hour)
	other.Cluster = "d"
	_, err = b.Silence(other, t0)
	require.NoError(t, err)
	_, err = b.Silence(silence("again", 3*time.Hour), t0.Add(2*time.Hour))
	require.NoError(t, err, "what is over makes room")
}

func TestRefusalsPushNothingOut(t *testing.T) {
	b := New(0.5)
	_, err := b.Silence(silence("n", time.Hour), t0)
	require.NoError(t, err)
	for i := range 10 * maxRefused {
		b.Note(Audit{At: t0.Add(time.Duration(i) * time.Second), By: strconv.Itoa(i), Word: WordNote, Outcome: Refused})
	}
	log := b.Audit(nil)
	assert.Len(t, log, 1+maxRefused)
	assert.Equal(t, Taken, log[len(log)-1].Outcome)
	b.Note(Audit{At: t0, By: "x", Word: WordNote, Outcome: Refused})
	b.Note(Audit{At: t0, By: "x", Word: WordNote, Outcome: Refused})
	assert.Equal(t, int64(2), b.Audit(nil)[0].Count)
}

// TestRestart draws words, and restarts between them: the next process knows the same.
func TestRestart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, now, file := New(0.5), t0, map[string]Document{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 20*24*3600).Draw(t, "wait")) * time.Second)
			switch rapid.SampledFrom([]string{"silence", "end", "ack", "expire", "refused"}).Draw(t, "what") {
			case "silence":
				s := silence(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"), 0)
				s.Until = now.Add(time.Duration(rapid.IntRange(1, 30*24).Draw(t, "hours")) * time.Hour)
				_, err := b.Silence(s, now)
				require.NoError(t, err)
			case "end":
				if list := b.Silences(nil, true, now); len(list) > 0 {
					_, err := b.End(list[0].ID, "bob", "", now)
					require.NoError(t, err)
				}
			case "ack":
				_, err := b.Acknowledge(Acknowledgement{Cluster: "c", Episode: rapid.SampledFrom([]string{"e", "f"}).Draw(t, "episode"), Reason: "r"}, now)
				require.NoError(t, err)
			case "expire":
				b.Expire(now)
			case "refused":
				_, err := b.Silence(Silence{}, now)
				require.Error(t, err)
			}
			docs := b.Changed(1000)
			if rapid.Bool().Draw(t, "fails") {
				b.Again(docs)
				docs = b.Changed(1000)
			}
			for _, d := range docs {
				file[d.Kind+d.ID] = d
			}
			next := New(0.5)
			for _, d := range file {
				if d.Record != nil {
					require.NoError(t, next.Restore(d.Kind, d.Record))
				}
			}
			require.Equal(t, b.Silences(nil, false, now), next.Silences(nil, false, now))
			require.Equal(t, b.Acknowledgements(nil), next.Acknowledgements(nil))
			require.Equal(t, b.Audit(nil), next.Audit(nil))
			for _, n := range []string{"a", "b"} {
				require.Equal(t, b.Silenced(Scope{Cluster: "c", Node: n}, now), next.Silenced(Scope{Cluster: "c", Node: n}, now))
			}
			require.Equal(t, b.silenceRoom.Taken(), next.silenceRoom.Taken())
			b = next
		}
	})
}
