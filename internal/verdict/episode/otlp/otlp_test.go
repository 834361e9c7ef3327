// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// drawn is an episode of any kind.
func drawn(t *rapid.T) *episode.Episode {
	text := func(label string) string {
		return rapid.SampledFrom([]string{"", "a", "gpu-017", "日本"}).Draw(t, label)
	}
	number := func(label string) *float64 {
		if !rapid.Bool().Draw(t, label+" known") {
			return nil
		}
		return new(rapid.Float64Range(-1e12, 1e12).Draw(t, label))
	}
	count := func(label string) int64 { return rapid.Int64Range(0, 1000).Draw(t, label) }
	flag := func(label string) bool { return rapid.Bool().Draw(t, label) }
	at := func(label string) time.Time {
		return noon.Add(-time.Duration(rapid.Int64Range(0, 1e7).Draw(t, label)) * time.Millisecond)
	}
	e := &episode.Episode{
		ID:      text("id"),
		Phase:   rapid.SampledFrom([]episode.Phase{episode.PhaseOnset, episode.PhaseSeverity, episode.PhaseUpdate, episode.PhaseEnd}).Draw(t, "phase"),
		Subject: rapid.SampledFrom([]episode.Subject{episode.SubjectNode, episode.SubjectGroup, episode.SubjectMissing, episode.SubjectLink, episode.SubjectJob}).Draw(t, "subject"),
		Cluster: "c", Node: "n", Group: text("group"), Updated: noon, Since: at("since"), SinceBefore: flag("before"),
		Signal: text("signal"), Severity: episode.Severity(rapid.IntRange(0, 3).Draw(t, "severity")),
		Confidence: number("confidence"), Gap: number("gap"), Value: number("value"), Median: number("median"), Recovering: flag("recovering"),
		Cost: number("cost"), NodeCount: count("nodes"), Cause: text("cause"), Reason: text("reason"), Action: text("action"), GPU: text("gpu"),
		Shared: count("shared"), Asked: count("asked"), Part: text("part"), Ranks: count("ranks"), Job: text("job"),
		Communicator: text("communicator"), CommunicatorID: text("communicator id"), Text: text("text"),
		Culprit: nodesignal.Subject{GPU: text("culprit"), Rank: nodesignal.OrdinalOf(count("rank of") - 1), LocalRank: nodesignal.OrdinalOf(count("local rank") - 1)},
	}
	if flag("ranked") {
		e.Rank, e.Active = new(count("rank")), new(count("active"))
	}
	if e.SinceBefore {
		e.Since = e.Updated // which has no attribute
	}
	if e.Phase == episode.PhaseEnd {
		e.Ended = e.Updated
	}
	e.Observation = e.Reason != "" && flag("observation")
	for range rapid.IntRange(0, 3).Draw(t, "list") {
		e.Nodes = append(e.Nodes, "n"+text("node"))
		e.Holders = append(e.Holders, reading.Holder{Pod: "p", Namespace: text("namespace")})
		e.Evidence = append(e.Evidence, episode.Evidence{Fact: "f", GPU: text("of"), Unit: text("unit"), Value: number("is"), Peers: number("peers"), Since: at("from"), Standing: flag("standing")})
	}
	return e
}

// TestRoundTrip: a record keeps what was known of an episode.
func TestRoundTrip(t *testing.T) {
	seen := map[string]bool{}
	rapid.Check(t, func(t *rapid.T) {
		e := drawn(t)
		lr := plog.NewLogRecord()
		Encode(e, lr, noon.Add(time.Second))
		assert.Equal(t, e, Decode(lr, "c", "n", noon.Add(time.Minute)))
		for name := range lr.Attributes().All() {
			seen[name] = true
		}
	})
	lr := plog.NewLogRecord()
	Encode(&episode.Episode{Phase: episode.PhaseEnd, Since: noon, Updated: noon, Ended: noon}, lr, noon)
	seen[gpusemconv.AttrEpisodeDuration] = lr.Attributes().Len() > 0 // which few draws have
	documented, err := eventdoc.Attributes("../../../../docs/events.md", gpusemconv.EventStraggler)
	require.NoError(t, err)
	assert.Equal(t, documented, slices.Sorted(maps.Keys(seen)))
}

func TestSeverityNumber(t *testing.T) {
	for want, e := range map[plog.SeverityNumber]*episode.Episode{
		plog.SeverityNumberWarn:  {Phase: episode.PhaseOnset, Severity: episode.SeverityMajor},
		plog.SeverityNumberError: {Phase: episode.PhaseSeverity, Severity: episode.SeverityCritical},
		plog.SeverityNumberInfo:  {Phase: episode.PhaseEnd, Severity: episode.SeverityCritical},
	} {
		lr := plog.NewLogRecord()
		Encode(e, lr, noon)
		assert.Equal(t, want, lr.SeverityNumber())
		assert.Equal(t, want.String(), lr.SeverityText())
		assert.Equal(t, noon, lr.ObservedTimestamp().AsTime())
	}
}

// TestForeignRecords: another sender may write anything. No time is in the future, and what
// is not of its type is left out.
func TestForeignRecords(t *testing.T) {
	lr := plog.NewLogRecord()
	lr.SetTimestamp(pcommon.NewTimestampFromTime(noon.AddDate(1, 0, 0)))
	require.NoError(t, lr.Attributes().FromRaw(map[string]any{
		gpusemconv.AttrEpisodePhase: "end", gpusemconv.AttrEpisodeSince: noon.AddDate(2, 0, 0).Format(time.RFC3339Nano),
		gpusemconv.AttrEpisodeConfidence: "not a number", gpusemconv.AttrEpisodeGap: int64(1), gpusemconv.AttrEpisodeRank: 1.5,
		gpusemconv.AttrEpisodeSeverity: "awful", gpusemconv.AttrEpisodeNodeCount: int64(-3), gpusemconv.AttrEpisodeNodes: "no list",
		gpusemconv.AttrEpisodeEvidence:    []any{"not an evidence", "fact=cold value=NaN gpu=g since=yesterday", 7},
		gpusemconv.AttrEpisodeAllocations: []any{"job=12", "rubbish"},
	}))
	lr.Body().SetStr(strings.Repeat("x", 5000))
	e := Decode(lr, "c", "n", noon)
	assert.Equal(t, &episode.Episode{
		Phase: episode.PhaseEnd, Cluster: "c", Node: "n", Since: noon, Updated: noon, Ended: noon, Gap: new(1.0),
		Evidence: []episode.Evidence{{Fact: "cold", GPU: "g"}}, Holders: []reading.Holder{{Job: "12"}}, Text: strings.Repeat("x", maxText),
	}, e)
	lr = plog.NewLogRecord()
	lr.Attributes().PutInt(gpusemconv.AttrEpisodeSince, noon.Add(-time.Hour).UnixNano())
	assert.Equal(t, &episode.Episode{Since: noon.Add(-time.Hour), Updated: noon}, Decode(lr, "", "", noon))
}

// TestALogfmtValueIsOneWord: a name with spaces adds no pairs.
func TestALogfmtValueIsOneWord(t *testing.T) {
	assert.Equal(t, "fact=hw_thermal value=1 peers=0 unit=1 since=2026-03-01T12:00:00.000Z gpu=GPU-1_fact=x", logfmt(episode.Evidence{
		Fact: "hw_thermal", Value: new(1.0), Peers: new(0.0), Unit: "1", GPU: "GPU-1\tfact=x", Since: noon,
	}))
}

// FuzzDecode reads episodes out of any log record, as OTLP JSON: what comes of it has bounds
// and has a form in JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"eventName":"gpu.straggler","body":{"stringValue":"x"},"attributes":[]}]}]}]}`))
	f.Add([]byte(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[{"key":"gpu.straggler.evidence","value":{"arrayValue":{"values":[{"stringValue":"fact=x value=1e999 peers=NaN gpu"}]}}}]}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(data)
		if err != nil {
			return
		}
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, lr := range sl.LogRecords().All() {
					e := Decode(lr, "c", "n", noon)
					require.LessOrEqual(t, len(e.Text), maxText)
					require.LessOrEqual(t, len(e.Nodes), episode.MaxNodes)
					require.LessOrEqual(t, len(e.Evidence), maxEvidence)
					_, err := json.Marshal([]any{e.Confidence, e.Gap, e.Value, e.Median, e.Evidence})
					require.NoError(t, err)
				}
			}
		}
	})
}
