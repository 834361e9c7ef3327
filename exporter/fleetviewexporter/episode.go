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
)

// Attributes of an episode's record.
const (
	attrEpisodeID    = "gpu.straggler.episode.id"
	attrPhase        = "gpu.straggler.phase" // onset, severity or end
	attrSubject      = "gpu.straggler.subject"
	attrSeverity     = "gpu.straggler.severity"
	attrSince        = "gpu.straggler.since"
	attrConfidence   = "gpu.straggler.confidence"
	attrGap          = "gpu.straggler.gap"
	attrValue        = "gpu.straggler.value"
	attrMedian       = "gpu.straggler.peers.median"
	attrRank         = "gpu.straggler.rank"
	attrActive       = "gpu.straggler.peers.active"
	attrNodes        = "gpu.straggler.nodes"
	attrNodeCount    = "gpu.straggler.node_count"
	attrCause        = "gpu.straggler.cause"
	attrReason       = "gpu.straggler.reason"
	attrAction       = "gpu.straggler.action"
	attrObservation  = "gpu.straggler.observation"
	attrLost         = "gpu.straggler.gpu_hours_lost_per_hour"
	attrEvidence     = "gpu.straggler.evidence"
	phaseEnd         = "end"
	maxEpisodeNodes  = 100
	maxEvidence      = 32
	maxSentenceBytes = 1024
)

// readEpisode reads the record of an episode. The resource says whom it is about.
func readEpisode(lr plog.LogRecord, id *identity, now time.Time) *fleetstate.Episode {
	a := attributes{lr.Attributes()}
	at := now
	if t := lr.Timestamp(); t != 0 {
		at = t.AsTime()
	}
	ep := &fleetstate.Episode{
		ID: a.text(attrEpisodeID), Subject: a.text(attrSubject),
		Cluster: id.Cluster, Group: a.text(gpusemconv.AttrPeerGroup), Node: id.Node,
		Signal: a.text(gpusemconv.AttrSignal), Severity: a.text(attrSeverity),
		Since: a.time(attrSince, at), Updated: at,
		Confidence: a.number(attrConfidence), Gap: a.number(attrGap), Value: a.number(attrValue), Median: a.number(attrMedian),
		Rank: a.int(attrRank), Active: a.int(attrActive), LostGPUHoursPerHour: a.number(attrLost),
		Cause: a.text(attrCause), Reason: a.text(attrReason), Action: a.text(attrAction), Observation: a.text(attrObservation) == "true",
		GPU: a.text(gpusemconv.AttrHWID), Evidence: a.evidence(),
	}
	if n := a.int(attrNodeCount); n != nil {
		ep.NodeCount = *n
	}
	for _, v := range a.list(attrNodes, maxEpisodeNodes) {
		ep.Nodes = append(ep.Nodes, short(text(v), fleetstate.MaxName))
	}
	if lr.Body().Type() == pcommon.ValueTypeStr {
		ep.Text = short(lr.Body().Str(), maxSentenceBytes)
	}
	if a.text(attrPhase) == phaseEnd {
		ep.Ended = at
	}
	return ep
}

// attributes reads values of the types they should have.
type attributes struct{ pcommon.Map }

func (a attributes) text(name string) string {
	if v, ok := a.Get(name); ok {
		return short(text(v), maxSentenceBytes)
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
	for _, v := range a.list(attrEvidence, maxEvidence) {
		var e fleetstate.Evidence
		for pair := range strings.FieldsSeq(short(text(v), maxSentenceBytes)) {
			name, value, _ := strings.Cut(pair, "=")
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

func short(s string, limit int) string { return s[:min(len(s), limit)] }
