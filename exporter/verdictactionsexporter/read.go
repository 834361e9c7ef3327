// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"fmt"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/repair"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// maxText bounds a text of a record that is kept.
const maxText = 256

type attributes struct{ pcommon.Map }

func (a attributes) text(name string) string {
	v, ok := a.Get(name)
	if !ok {
		return ""
	}
	s := metricreading.Text(v)
	return s[:min(len(s), maxText)]
}

func (a attributes) int(name string) int {
	if v, ok := a.Get(name); ok && v.Type() == pcommon.ValueTypeInt {
		return int(min(max(v.Int(), 0), 1<<30))
	}
	return 0
}

func (a attributes) list(name string) (list []string) {
	v, ok := a.Get(name)
	if !ok || v.Type() != pcommon.ValueTypeSlice {
		return nil
	}
	for i := range min(v.Slice().Len(), 32) {
		s := metricreading.Text(v.Slice().At(i))
		list = append(list, s[:min(len(s), maxText)])
	}
	return list
}

// sender names the cluster and the node of a resource; a name that no header could carry
// is none.
func sender(attrs pcommon.Map) (cluster, node string) {
	var names identity.Names
	metricreading.Identify(&names, attrs)
	cluster, node = names.Cluster("", ""), names.Node()
	if !wire.ValidName(node) {
		node = ""
	}
	return cluster, node
}

// readRecord hands one record to the machine, if it is one of those that say something.
func readRecord(m *repair.Machine, lr plog.LogRecord, resource pcommon.Map, node string, now time.Time) {
	a := attributes{lr.Attributes()}
	if node != "" && a.text(gpusemconv.AttrSilenced) == "true" {
		// Metrics tell the end, also one before its time.
		if until, err := time.Parse(time.RFC3339, a.text(gpusemconv.AttrSilenceUntil)); err == nil {
			m.Mute(node, until, now)
		}
	}
	switch lr.EventName() {
	case gpusemconv.EventStraggler:
		m.Episode(readEpisode(a, attributes{resource}, node), now)
	case gpusemconv.EventHealthChange:
		if node != "" {
			h := &repair.Health{Node: node, GPU: a.text(gpusemconv.AttrHWID), To: a.text(gpusemconv.AttrHealthTo), Actions: a.list(gpusemconv.AttrHealthActions)}
			h.Evidence = fmt.Sprintf("health=%s gpu=%s reasons=%v", h.To, h.GPU, a.list(gpusemconv.AttrHealthReasons))
			m.Health(h, now)
		}
	case gpusemconv.EventXid:
		if node != "" {
			m.Xid(&repair.Xid{Node: node, GPU: a.text(gpusemconv.AttrHWID), Action: a.text(gpusemconv.AttrHealthAction), Code: a.int(gpusemconv.AttrXIDCode), At: now}, now)
		}
	}
}

func readEpisode(a, resource attributes, node string) *repair.Episode {
	e := &repair.Episode{
		ID: a.text(gpusemconv.AttrEpisodeID), Node: node, Subject: a.text(gpusemconv.AttrEpisodeSubject), Ended: a.text(gpusemconv.AttrEpisodePhase) == "end",
		Signal: a.text(gpusemconv.AttrSignal), Severity: a.text(gpusemconv.AttrEpisodeSeverity), Reason: a.text(gpusemconv.AttrEpisodeReason),
		Action: a.text(gpusemconv.AttrEpisodeAction), Observation: a.text(gpusemconv.AttrEpisodeObservation) == "true", GPU: a.text(gpusemconv.AttrHWID),
		Job: resource.text(gpusemconv.AttrJobID), Group: a.text(gpusemconv.AttrPeerGroup), Peers: max(a.int(gpusemconv.AttrEpisodePeersActive)-1, 0),
	}
	if gpu := a.text(gpusemconv.AttrJobRankGPU); e.GPU == "" {
		e.GPU = gpu
	}
	if v, ok := a.Get(gpusemconv.AttrEpisodeGap); ok && v.Type() == pcommon.ValueTypeDouble && v.Double() >= 0 && v.Double() <= 1 {
		e.Gap = v.Double()
	}
	e.Evidence = fmt.Sprintf("episode=%s signal=%s severity=%s gap=%.3f reason=%s", e.ID, e.Signal, e.Severity, e.Gap, e.Reason)
	return e
}

// readMetrics hands on what a resource's metrics say of its node, or of its cluster.
func readMetrics(m *repair.Machine, from *metricreading.Resource, rm pmetric.ResourceMetrics, node string, now time.Time) {
	says := repair.Reading{Node: node}
	said := false
	var p metricreading.Point
	for _, sm := range rm.ScopeMetrics().All() {
		for _, metric := range sm.Metrics().All() {
			known := reading.ByName(metric.Name())
			if known == nil || known.For&reading.Actions == 0 || (known.Subject() == reading.Group) != (node == "") {
				continue
			}
			points, ok := from.Open(known, metric)
			if !ok {
				continue
			}
			for _, dp := range points.All() {
				if from.Read(dp, &p) != reading.Accepted || p.Ended && p.Field != reading.SilencedUntil {
					continue
				}
				if node == "" {
					readCluster(m, &p, now)
				} else if readNode(&says, &p) {
					said = true
				}
			}
		}
	}
	if said {
		m.Reading(&says, now)
	}
}

// readNode takes a point about a node, and reports whether it said something.
func readNode(to *repair.Reading, p *metricreading.Point) bool {
	yes := p.Value > 0
	switch p.Field {
	case reading.NodeStraggler:
		// A node may be in several groups. It counts to the one whose verdict it has.
		if g := (attributes{p.Attributes()}).text(gpusemconv.AttrPeerGroup); to.Group == "" || yes && !*to.Straggler {
			to.Group = g
		}
		yes = yes || to.Straggler != nil && *to.Straggler // in any of its groups
		to.Straggler = &yes
	case reading.NodeSuspicion:
		if to.Suspicion != nil && p.Value <= *to.Suspicion {
			return false
		}
		to.Suspicion = new(p.Value)
	case reading.NodeState:
		if p.Texts[0] != gpusemconv.StateActive {
			return false
		}
		to.Active = &yes
	default:
		return false
	}
	return true
}

// readCluster takes a point about a peer group, or about a node that is silenced.
func readCluster(m *repair.Machine, p *metricreading.Point, now time.Time) {
	a := attributes{p.Attributes()}
	yes := p.Value > 0
	g := &repair.Group{Group: a.text(gpusemconv.AttrPeerGroup)}
	switch p.Field {
	case reading.SilencedUntil:
		if node := p.Texts[0]; wire.ValidName(node) {
			var until time.Time // the series has ended: so has the silence
			if !p.Ended {
				until = time.Unix(int64(p.Value), 0)
			}
			m.Mute(node, until, now)
		}
		return
	case reading.GroupPanic:
		g.Panic = &yes
	case reading.GroupCoverageLow:
		g.CoverageLow = &yes
	case reading.GroupIncident:
		g.Incident = &yes
	case reading.GroupNodes:
		if p.Texts[0] != gpusemconv.StateActive {
			return
		}
		g.Active = new(int(p.Value))
	default:
		return
	}
	if g.Group != "" {
		m.Group(g, now)
	}
}
