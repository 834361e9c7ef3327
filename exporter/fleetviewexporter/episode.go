// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// Bounds of one record.
const (
	maxEpisodeNodes  = 100
	maxEvidence      = 32
	maxHolders       = 16
	maxSentenceBytes = 1024
)

// phaseEnd is the last of the phases onset, severity and end.
const phaseEnd = "end"

// readEpisode reads the record of an episode. The resource says whom it is about. No
// time is later than now: such an episode would never expire.
func readEpisode(lr plog.LogRecord, id *sender, now time.Time) *fleetstate.Episode {
	a := attributes{lr.Attributes()}
	at := now
	if t := lr.Timestamp(); t != 0 {
		at = earlier(t.AsTime(), now)
	}
	ep := &fleetstate.Episode{
		ID: a.text(gpusemconv.AttrEpisodeID), Subject: a.text(gpusemconv.AttrEpisodeSubject),
		Cluster: id.Cluster, Group: a.text(gpusemconv.AttrPeerGroup), Node: id.Node,
		Signal: a.text(gpusemconv.AttrSignal), Severity: a.text(gpusemconv.AttrEpisodeSeverity),
		Since: earlier(a.time(gpusemconv.AttrEpisodeSince, at), at), Updated: at,
		Confidence: a.number(gpusemconv.AttrEpisodeConfidence), Gap: a.number(gpusemconv.AttrEpisodeGap), Value: a.number(gpusemconv.AttrEpisodeValue), Median: a.number(gpusemconv.AttrEpisodePeersMedian),
		Rank: a.int(gpusemconv.AttrEpisodeRank), Active: a.int(gpusemconv.AttrEpisodePeersActive), LostGPUHoursPerHour: a.number(gpusemconv.AttrEpisodeCost),
		Cause: a.text(gpusemconv.AttrEpisodeCause), Reason: a.text(gpusemconv.AttrEpisodeReason), Action: a.text(gpusemconv.AttrEpisodeAction), Observation: a.text(gpusemconv.AttrEpisodeObservation) == "true",
		GPU: a.text(gpusemconv.AttrHWID), Evidence: a.evidence(), Culprit: a.culprit(),
		Job: a.text(gpusemconv.AttrJobID), Communicator: a.text(gpusemconv.AttrCommunicatorName),
	}
	_, known := a.Get(gpusemconv.AttrEpisodeSince)
	ep.SinceBefore = !known
	if n := a.int(gpusemconv.AttrEpisodeNodeCount); n != nil {
		ep.NodeCount = *n
	}
	for _, v := range a.list(gpusemconv.AttrEpisodeNodes, maxEpisodeNodes) {
		ep.Nodes = append(ep.Nodes, short(metricreading.Text(v), fleetstate.MaxName))
	}
	for _, v := range a.list(gpusemconv.AttrEpisodeAllocations, maxHolders) {
		if h := reading.ParseHolder(short(metricreading.Text(v), maxSentenceBytes)); h.Named() {
			ep.Holders = append(ep.Holders, h)
		}
	}
	if lr.Body().Type() == pcommon.ValueTypeStr {
		ep.Text = short(lr.Body().Str(), maxSentenceBytes)
	}
	if a.text(gpusemconv.AttrEpisodePhase) == phaseEnd {
		ep.Ended = at
	}
	return ep
}

// attributes reads values of the types they should have.
type attributes struct{ pcommon.Map }

func (a attributes) text(name string) string {
	if v, ok := a.Get(name); ok {
		return short(metricreading.Text(v), maxSentenceBytes)
	}
	return ""
}

func (a attributes) number(name string) *float64 {
	v, ok := a.Get(name)
	if !ok {
		return nil
	}
	var x float64
	switch v.Type() {
	case pcommon.ValueTypeDouble:
		x = v.Double()
	case pcommon.ValueTypeInt:
		x = float64(v.Int())
	default:
		return nil
	}
	if x-x != 0 { // NaN and infinity, which JSON cannot say
		return nil
	}
	return &x
}

func (a attributes) int(name string) *int64 {
	v, ok := a.Get(name)
	if !ok || v.Type() != pcommon.ValueTypeInt {
		return nil
	}
	n := v.Int()
	return &n
}

// culprit reads the rank at fault; hw.id may be of another device.
func (a attributes) culprit() nodesignal.Subject {
	of := rankattr.Subject(a.Map)
	of.GPU = a.text(gpusemconv.AttrJobRankGPU)
	return of
}

// time reads RFC 3339 text or Unix nanoseconds.
func (a attributes) time(name string, otherwise time.Time) time.Time {
	v, ok := a.Get(name)
	if !ok {
		return otherwise
	}
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return time.Unix(0, v.Int())
	case pcommon.ValueTypeStr:
		if t, err := time.Parse(time.RFC3339Nano, v.Str()); err == nil {
			return t
		}
	}
	return otherwise
}

func (a attributes) list(name string, limit int) []pcommon.Value {
	v, ok := a.Get(name)
	if !ok || v.Type() != pcommon.ValueTypeSlice {
		return nil
	}
	var out []pcommon.Value
	for i := range min(v.Slice().Len(), limit) {
		out = append(out, v.Slice().At(i))
	}
	return out
}

// evidence reads a list of texts such as `fact=hw_thermal value=1 peers=0 unit=1 gpu=GPU-1`.
func (a attributes) evidence() []fleetstate.Evidence {
	var out []fleetstate.Evidence
	for _, v := range a.list(gpusemconv.AttrEpisodeEvidence, maxEvidence) {
		var e fleetstate.Evidence
		for pair := range strings.FieldsSeq(short(metricreading.Text(v), maxSentenceBytes)) {
			name, value, _ := strings.Cut(pair, "=")
			switch name {
			case "fact":
				e.Fact = strings.Clone(value) // the text that it is of may be much longer
			case "gpu":
				e.GPU = strings.Clone(value)
			case "unit":
				e.Unit = strings.Clone(value)
			case "value":
				e.Value = parse(value)
			case "peers":
				e.Peers = parse(value)
			}
		}
		if e.Fact != "" {
			out = append(out, e)
		}
	}
	return out
}

// parse returns nil for what is no number that JSON can say.
func parse(s string) *float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || x-x != 0 {
		return nil
	}
	return &x
}

// short copies what it cuts, so that nothing keeps the whole.
func short(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.Clone(s[:limit])
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
