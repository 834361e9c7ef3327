// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// keeper is an extension that keeps people's words.
type keeper struct {
	component.StartFunc
	component.ShutdownFunc
	*people.Book
}

func (k keeper) People() *people.Book { return k.Book }

var silencesFrom = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// newSilences are those of a book, and a report about three nodes of one job and group.
func newSilences(t *testing.T) (*silences, *people.Book, *straggler.Report) {
	t.Helper()
	s := &silences{jobPeer: 1}
	book := people.New(1)
	s.join(host{map[component.ID]component.Component{extensionID: &fakeExtension{}, component.MustNewID("fleet_view"): keeper{Book: book}}})
	require.Len(t, s.books, 1)
	r := &straggler.Report{At: silencesFrom}
	for _, name := range []string{"n1", "n2", "n3"} {
		r.Nodes = append(r.Nodes, straggler.NodeReport{NodeName: &straggler.NodeName{Cluster: "c", Group: "j/worker", Node: name, Peers: []string{"j", "worker"}}})
	}
	return s, book, r
}

// told are the points of a tick: the name to its value, -1 for an end.
func (s *silences) saidAt(r *straggler.Report, at time.Time) map[string]int64 {
	r.At = at
	md := pmetric.NewMetrics()
	s.tick(md, r)
	said := map[string]int64{}
	for _, rm := range md.ResourceMetrics().All() {
		cluster, _ := rm.Resource().Attributes().Get(gpusemconv.AttrClusterName)
		for _, p := range metricreading.Points(rm.ScopeMetrics().At(0).Metrics().At(0)).All() {
			for k, v := range p.Attributes().All() {
				name := cluster.Str() + " " + k + "=" + v.Str()
				if said[name] = p.IntValue(); p.Flags().NoRecordedValue() {
					said[name] = -1
				}
			}
		}
	}
	return said
}

func TestSilencesAreMetrics(t *testing.T) {
	s, book, r := newSilences(t)
	assert.Empty(t, s.saidAt(r, silencesFrom))
	hour, day := silencesFrom.Add(time.Hour), silencesFrom.Add(24*time.Hour)
	of := func(k people.Silence) *people.Silence {
		k.Cluster, k.Reason, k.By = "c", "psu", "ann"
		got, err := book.Silence(k, silencesFrom)
		require.NoError(t, err)
		return got
	}
	of(people.Silence{Node: "n1", Until: hour})
	of(people.Silence{Node: "never seen", Until: hour})
	assert.Equal(t, map[string]int64{"c host.name=n1": hour.Unix(), "c host.name=never seen": hour.Unix()}, s.saidAt(r, silencesFrom))
	group := of(people.Silence{Group: "j/worker", Until: day})
	assert.Equal(t, map[string]int64{
		"c gpu.peer_group=j/worker": day.Unix(),
		"c host.name=n1":            day.Unix(), "c host.name=n2": day.Unix(), "c host.name=n3": day.Unix(), "c host.name=never seen": hour.Unix(),
	}, s.saidAt(r, silencesFrom), "the one that lasts longest counts")
	_, err := book.End(group.ID, "ann", "", silencesFrom)
	require.NoError(t, err)
	for range endTicks {
		assert.Equal(t, map[string]int64{
			"c gpu.peer_group=j/worker": -1, "c host.name=n1": hour.Unix(), "c host.name=n2": -1, "c host.name=n3": -1, "c host.name=never seen": hour.Unix(),
		}, s.saidAt(r, silencesFrom))
	}
	assert.Len(t, s.saidAt(r, silencesFrom), 2)
	of(people.Silence{Job: "j", Until: day})
	assert.Equal(t, day.Unix(), s.saidAt(r, silencesFrom)["c host.name=n2"])
	for range endTicks {
		assert.Equal(t, int64(-1), s.saidAt(r, day)["c gpu.job.id=j"])
	}
	assert.Empty(t, s.saidAt(r, day), "they end by themselves")
	assert.Empty(t, s.told)
}

func TestRecordsSayThatSomethingIsSilenced(t *testing.T) {
	s, book, r := newSilences(t)
	until := silencesFrom.Add(time.Hour)
	_, err := book.Silence(people.Silence{Cluster: "c", Group: "j/worker", Reason: "move", By: "ann", Until: until}, silencesFrom)
	require.NoError(t, err)
	_, err = book.Silence(people.Silence{Cluster: "c", Job: "other", Reason: "test", By: "ann", Until: until}, silencesFrom)
	require.NoError(t, err)
	s.saidAt(r, silencesFrom)
	for name, tc := range map[string]struct {
		cluster, node, job, event string
		at                        time.Time
		reason                    string // empty: not silenced
	}{
		"of a node of the group":           {"c", "n1", "", gpusemconv.EventXid, silencesFrom, "move"},
		"its health":                       {"c", "n1", "", gpusemconv.EventHealthChange, silencesFrom, "move"},
		"a lower gateway's":                {"c", "n1", "", gpusemconv.EventStraggler, silencesFrom, "move"},
		"of a node of the job":             {"c", "n9", "other", gpusemconv.EventXid, silencesFrom, "test"},
		"of another node":                  {"c", "n9", "", gpusemconv.EventXid, silencesFrom, ""},
		"of another cluster's node":        {"d", "n1", "", gpusemconv.EventXid, silencesFrom, ""},
		"after its end, before a new tick": {"c", "n1", "", gpusemconv.EventXid, until, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ld := plog.NewLogs()
			rl := ld.ResourceLogs().AppendEmpty()
			for k, v := range map[string]string{gpusemconv.AttrClusterName: tc.cluster, gpusemconv.AttrHostName: tc.node, gpusemconv.AttrJobID: tc.job} {
				putText(rl.Resource().Attributes(), k, v)
			}
			records := rl.ScopeLogs().AppendEmpty().LogRecords()
			lr := records.AppendEmpty()
			lr.SetEventName(tc.event)
			lr.Attributes().PutBool(gpusemconv.AttrSilenced, true) // the sender's own word
			lr.Attributes().PutStr(gpusemconv.AttrSilenceReason, "mine")
			records.AppendEmpty().SetEventName("a job's own")
			s.pass(ld, "", "default", tc.at)
			assert.Zero(t, records.At(1).Attributes().Len())
			if tc.reason == "" {
				assert.Zero(t, lr.Attributes().Len())
				return
			}
			assert.Equal(t, map[string]any{
				gpusemconv.AttrSilenced: true, gpusemconv.AttrSilenceUntil: "2026-03-01T13:00:00.000Z", gpusemconv.AttrSilenceReason: tc.reason,
			}, lr.Attributes().AsRaw())
		})
	}
}

func TestEpisodesAreOfWhatIsSilenced(t *testing.T) {
	s, _, _ := newSilences(t)
	ep := &episode{Event: &straggler.Event{Cluster: "c", Node: "n1", Group: "j/worker", Peers: []string{"j", "worker"}}}
	assert.Equal(t, people.Scope{Cluster: "c", Node: "n1", Job: "j", Group: "j/worker"}, ep.scope(s))
}
