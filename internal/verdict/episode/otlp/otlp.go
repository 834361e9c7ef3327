// SPDX-License-Identifier: Apache-2.0

// Package otlp writes an episode as a log record, and reads it back: the event
// `gpu.straggler.episode` of docs/events.md.
package otlp // import "github.com/gpu-collector/gpu-collector/internal/verdict/episode/otlp"

import (
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Bounds of a record that is read.
const (
	maxEvidence = 32
	maxText     = 1024
)

// iso8601 in UTC, to the millisecond, as OpenTelemetry's own attributes of points in time,
// such as process.creation.time.
const iso8601 = "2006-01-02T15:04:05.000Z"

// Encode fills a log record with an episode, observed now. Cluster, node and group labels are
// attributes of its resource.
func Encode(e *episode.Episode, lr plog.LogRecord, now time.Time) {
	lr.SetTimestamp(pcommon.NewTimestampFromTime(e.Updated))
	lr.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
	lr.SetEventName(gpusemconv.EventStraggler)
	lr.SetSeverityNumber(severityNumber(e))
	lr.SetSeverityText(lr.SeverityNumber().String())
	lr.Body().SetStr(e.Text)
	a := codec{Map: lr.Attributes()}
	a.fields(e)
	if !e.SinceBefore {
		a.PutStr(gpusemconv.AttrEpisodeSince, e.Since.UTC().Format(iso8601))
		if !e.Open() {
			a.PutDouble(gpusemconv.AttrEpisodeDuration, e.Duration().Seconds())
		}
	}
	if e.Reason != "" {
		a.PutBool(gpusemconv.AttrEpisodeObservation, e.Observation)
	}
	culprit := e.Culprit
	culprit.GPU = "" // hw.id is the reason's
	rankattr.Put(a.Map, culprit)
}

func severityNumber(e *episode.Episode) plog.SeverityNumber {
	switch {
	case e.Phase == episode.PhaseEnd:
		return plog.SeverityNumberInfo
	case e.Severity == episode.SeverityCritical:
		return plog.SeverityNumberError
	default:
		return plog.SeverityNumberWarn
	}
}

// Decode reads a record of a cluster, and of a node where it is about one. No time is later
// than now: such an episode would never expire. What is not of its type is left out.
func Decode(lr plog.LogRecord, cluster, node string, now time.Time) *episode.Episode {
	at := now
	if t := lr.Timestamp(); t != 0 && t.AsTime().Before(now) {
		at = t.AsTime()
	}
	a := codec{lr.Attributes(), true}
	_, known := a.Get(gpusemconv.AttrEpisodeSince)
	since := a.time(gpusemconv.AttrEpisodeSince, at)
	if since.After(at) {
		since = at
	}
	e := &episode.Episode{
		Cluster: cluster, Node: node, Since: since, SinceBefore: !known, Updated: at,
		Culprit: rankattr.Subject(a.Map),
	}
	a.fields(e)
	if e.Phase == episode.PhaseEnd {
		e.Ended = at
	}
	if lr.Body().Type() == pcommon.ValueTypeStr {
		e.Text = clip(lr.Body().Str())
	}
	return e
}

// fields reads what has an attribute of its own, or writes it and changes nothing.
func (a codec) fields(e *episode.Episode) {
	a.text(gpusemconv.AttrEpisodeID, &e.ID)
	a.text(gpusemconv.AttrEpisodePhase, (*string)(&e.Phase))
	a.text(gpusemconv.AttrEpisodeSubject, (*string)(&e.Subject))
	severity := e.Severity.String()
	a.text(gpusemconv.AttrEpisodeSeverity, &severity)
	if a.reads {
		_ = e.Severity.UnmarshalText([]byte(severity)) // never fails
	}
	a.text(gpusemconv.AttrPeerGroup, &e.Group)
	a.text(gpusemconv.AttrEpisodeCause, &e.Cause)
	a.text(gpusemconv.AttrSignal, &e.Signal)
	a.number(gpusemconv.AttrEpisodeConfidence, &e.Confidence)
	a.number(gpusemconv.AttrEpisodeGap, &e.Gap)
	a.number(gpusemconv.AttrEpisodeValue, &e.Value)
	a.number(gpusemconv.AttrEpisodePeersMedian, &e.Median)
	a.flag(gpusemconv.AttrEpisodeRecovering, &e.Recovering)
	a.integer(gpusemconv.AttrEpisodeRank, &e.Rank)
	a.integer(gpusemconv.AttrEpisodePeersActive, &e.Active)
	a.number(gpusemconv.AttrEpisodeCost, &e.Cost)
	a.count(gpusemconv.AttrEpisodeNodeCount, &e.NodeCount)
	list(a, gpusemconv.AttrEpisodeNodes, &e.Nodes, episode.MaxNodes,
		func(n string) string { return n }, func(text string) (string, bool) { return text, true })
	a.text(gpusemconv.AttrEpisodeReason, &e.Reason)
	a.text(gpusemconv.AttrEpisodeAction, &e.Action)
	a.flag(gpusemconv.AttrEpisodeObservation, &e.Observation)
	a.text(gpusemconv.AttrHWID, &e.GPU)
	list(a, gpusemconv.AttrEpisodeEvidence, &e.Evidence, maxEvidence, logfmt, func(text string) (episode.Evidence, bool) {
		ev := parseLogfmt(text)
		return ev, ev.Fact != ""
	})
	a.count(gpusemconv.AttrEpisodeShared, &e.Shared)
	a.count(gpusemconv.AttrEpisodeAsked, &e.Asked)
	a.text(gpusemconv.AttrJobRankGPU, &e.Culprit.GPU)
	a.text(gpusemconv.AttrEpisodePart, &e.Part)
	a.count(gpusemconv.AttrEpisodeRanks, &e.Ranks)
	a.text(gpusemconv.AttrJobID, &e.Job)
	a.text(gpusemconv.AttrCommunicatorName, &e.Communicator)
	a.text(gpusemconv.AttrCommunicatorID, &e.CommunicatorID)
	list(a, gpusemconv.AttrEpisodeAllocations, &e.Holders, episode.MaxHolders, reading.Holder.String, func(text string) (reading.Holder, bool) {
		h := reading.ParseHolder(text)
		return h, h.Named()
	})
}

// codec writes what is known, or reads values of the types that they should have. Its texts
// are copies.
type codec struct {
	pcommon.Map
	reads bool
}

func (a codec) text(name string, text *string) {
	if a.reads {
		*text = a.read(name)
	} else if *text != "" {
		a.PutStr(name, *text)
	}
}

func (a codec) read(name string) string {
	if v, ok := a.Get(name); ok {
		return clip(metricreading.Text(v))
	}
	return ""
}

func (a codec) number(name string, x **float64) {
	if !a.reads {
		if *x != nil {
			a.PutDouble(name, **x)
		}
	} else if v, ok := a.Get(name); ok && v.Type() == pcommon.ValueTypeDouble {
		*x = finite(v.Double())
	} else if ok && v.Type() == pcommon.ValueTypeInt {
		*x = finite(float64(v.Int()))
	}
}

func (a codec) integer(name string, n **int64) {
	if !a.reads {
		if *n != nil {
			a.PutInt(name, **n)
		}
	} else if v, ok := a.Get(name); ok && v.Type() == pcommon.ValueTypeInt {
		*n = new(v.Int())
	}
}

func (a codec) count(name string, n *int64) {
	var value *int64
	if !a.reads && *n > 0 {
		value = n
	}
	if a.integer(name, &value); a.reads && value != nil {
		*n = max(*value, 0)
	}
}

func (a codec) flag(name string, on *bool) {
	if a.reads {
		*on = a.read(name) == "true"
	} else if *on {
		a.PutBool(name, true)
	}
}

// time reads ISO 8601 text or Unix nanoseconds.
func (a codec) time(name string, otherwise time.Time) time.Time {
	var n *int64
	if a.integer(name, &n); n != nil {
		return time.Unix(0, *n).UTC()
	}
	if t, err := time.Parse(time.RFC3339Nano, a.read(name)); err == nil {
		return t
	}
	return otherwise
}

// list writes all, or reads those that can be parsed, up to the limit.
func list[T any](a codec, name string, all *[]T, limit int, text func(T) string, parse func(string) (T, bool)) {
	if !a.reads {
		if len(*all) > 0 {
			to := a.PutEmptySlice(name)
			for _, x := range *all {
				to.AppendEmpty().SetStr(text(x))
			}
		}
		return
	}
	v, ok := a.Get(name)
	if !ok || v.Type() != pcommon.ValueTypeSlice {
		return
	}
	for i := range min(v.Slice().Len(), limit) {
		if x, ok := parse(clip(metricreading.Text(v.Slice().At(i)))); ok {
			*all = append(*all, x)
		}
	}
}

// logfmt writes evidence as keys and values in one string, such as
// `fact=hw_thermal value=1 peers=0 unit=1 gpu=GPU-1`: log stores index lists of strings, but
// not lists of maps.
func logfmt(e episode.Evidence) string {
	var b strings.Builder
	pair := func(key, value string) {
		if value != "" {
			b.WriteString(" " + key + "=" + strings.Map(printable, value))
		}
	}
	pair("fact", e.Fact)
	pair("value", number(e.Value))
	pair("peers", number(e.Peers))
	pair("unit", e.Unit)
	if !e.Since.IsZero() {
		pair("since", e.Since.UTC().Format(iso8601))
	}
	if e.Standing {
		pair("standing", "true")
	}
	pair("gpu", e.GPU)
	return strings.TrimPrefix(b.String(), " ")
}

// printable replaces spaces and control characters.
func printable(r rune) rune {
	if r <= ' ' || r == 0x7f {
		return '_'
	}
	return r
}

func number(x *float64) string {
	if x == nil {
		return ""
	}
	return strconv.FormatFloat(*x, 'g', -1, 64)
}

func parseLogfmt(text string) (e episode.Evidence) {
	for pair := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(pair, "=")
		value = strings.Clone(value) // the text may be much longer
		switch name {
		case "fact":
			e.Fact = value
		case "gpu":
			e.GPU = value
		case "unit":
			e.Unit = value
		case "value":
			e.Value = parse(value)
		case "peers":
			e.Peers = parse(value)
		case "since":
			e.Since, _ = time.Parse(time.RFC3339Nano, value) // zero where it is none
		case "standing":
			e.Standing = value == "true"
		}
	}
	return e
}

func parse(s string) *float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil
	}
	return finite(x)
}

// finite returns nil for infinity and NaN, which JSON lacks.
func finite(x float64) *float64 {
	if x-x != 0 {
		return nil
	}
	return &x
}

// clip copies a text, so that nothing keeps its record.
func clip(s string) string { return strings.Clone(s[:min(len(s), maxText)]) }
