// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// world is workloads -> agents -> link -> shard -> link -> gateway, each a
// process with its shipped configuration.
type world struct {
	rnd      *rand.Rand
	fleet    *fleet
	agents   []*member
	shard    *member
	gateway  *member
	up, down *link // of the shard: to the gateway, and from the agents

	// seen is how many accusations of each kind there were before.
	seen []int
}

type setup struct {
	gateway, shard, agent []string      // overlays
	prepare               func(*member) // before a member starts
}

// The nodes behind each agent: one agent reports for many nodes, as on a head node,
// and two for one node each, as on a GPU node.
var nodesOf = []int{8, 1, 1}

const numNodes = 10

const noTLS = "GPU_COLLECTOR_INSECURE=true"

// newWorld starts all tiers and waits until every node's state is at the
// gateway, and every node has a threshold to judge itself by.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{rnd: newRand(t)}
	start := func(name, config string, over []string, env ...string) *member {
		m := newMember(t, name, env, config, over...)
		if s.prepare != nil {
			s.prepare(m)
		}
		m.Start()
		return m
	}
	w.gateway = start("gateway", "configs/gateway.yaml", s.gateway)
	w.up = newLink(t, "shard to gateway", w.gateway.GRPC)
	w.shard = start("shard", "configs/shard.yaml", s.shard, "GPU_COLLECTOR_GATEWAY="+w.up.Listen, noTLS)
	w.down = newLink(t, "agents to shard", w.shard.GRPC)
	var addrs []string
	for i := range nodesOf {
		a := start(fmt.Sprintf("agent %d", i), "configs/agent.yaml", s.agent, "GPU_COLLECTOR_GATEWAY="+w.down.Listen, noTLS, "GPU_COLLECTOR_CLUSTER="+cluster)
		w.agents = append(w.agents, a)
		addrs = append(addrs, a.GRPC)
	}
	w.fleet = newFleet(t, rand.New(rand.NewPCG(w.rnd.Uint64(), 0)), addrs, nodesOf)
	require.True(t, process.Within(process.Patience, func() bool { return w.fleet.push(t.Context()) }), "the agents take pushes")
	w.await(t, "every node has a threshold", w.judged)
	for _, m := range w.members() {
		m.before = m.level()
	}
	return w
}

func (w *world) members() []*member { return append([]*member{w.gateway, w.shard}, w.agents...) }

func (w *world) await(t *testing.T, what string, holds func(*testing.T) string) {
	t.Helper()
	stop := w.fleet.beat()
	defer stop()
	w.awaitPushed(t, what, holds)
}

// awaitPushed waits for a condition while another goroutine pushes.
func (w *world) awaitPushed(t *testing.T, what string, holds func(*testing.T) string) {
	t.Helper()
	missing := ""
	if !process.Within(process.Patience, func() bool { missing = holds(t); return missing == "" }) {
		require.Fail(t, "not within "+process.Patience.String()+": "+what, missing)
	}
}

// judged returns a node that does not judge itself by the gateway's threshold, or "".
func (w *world) judged(t *testing.T) string {
	t.Helper()
	node := 0
	for i, a := range w.agents {
		scraped := process.Scrape(t, a.Prom)
		for range nodesOf[i] {
			if !scraped.Is(1, "gpu_agent_detection_mode", process.Labels{"host_name": nodeName(node), "gpu_detection_mode": "fleet"}) {
				return nodeName(node)
			}
			node++
		}
	}
	return ""
}

// suffer pushes on while a fault lasts, and for a few beats before.
func (w *world) suffer(fault func()) {
	results.note(func(r *tally) { r.faults++ })
	stop := w.fleet.beat()
	defer stop()
	time.Sleep(interval + time.Duration(w.rnd.Int64N(int64(interval))))
	fault()
}

// reported are the metrics that nodes send all the time. What an agent adds comes and goes with its
// threshold, and each endpoint keeps such a series for a time of its own.
var reported = regexp.MustCompile("^(hw|gpu_app)_")

// series are the values of nodes by the text of their names and labels.
func series(scraped process.Scraped) map[string]float64 {
	by := map[string]float64{}
	for name, samples := range scraped {
		for _, s := range samples {
			if s.Labels["host_name"] != "" { // else it is the collector's own
				by[name+fmt.Sprint(s.Labels)] = s.Value
			}
		}
	}
	return by
}

// differences lists how the series of a collector above the shard differ from the agents',
// "" if they do not.
func (w *world) differences(t *testing.T, above *member) string {
	t.Helper()
	at := series(process.Scrape(t, above.Prom))
	var found []string
	own := map[string]float64{} // of all the agents
	for i, a := range w.agents {
		scraped := process.Scrape(t, a.Prom)
		if n := len(scraped["hw_power_watts"]); n != nodesOf[i]*gpusPerNode {
			found = append(found, fmt.Sprintf("agent %d has %d GPUs", i, n))
		}
		maps.Copy(own, series(scraped))
	}
	for key, want := range own {
		switch got, ok := at[key]; {
		case !ok && reported.MatchString(key):
			found = append(found, "missing: "+key)
		case ok && got != want:
			found = append(found, fmt.Sprintf("%s is %v, not %v", key, got, want))
		}
	}
	for key := range at {
		if _, ok := own[key]; !ok && reported.MatchString(key) {
			found = append(found, "no agent has: "+key)
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return fmt.Sprintf("%d differences:\n%s", len(found), strings.Join(found[:min(8, len(found))], "\n"))
}

// vanishedAfter is diff's default, and a sixteenth of its ttl more: for a node that was
// missing it begins with its next report.
const vanishedAfter = 3*time.Minute + 40*time.Second

// heal pushes until the gateway's state is the nodes', and notes how many pushes of
// each node did it, with what the shard then sends by itself. A push counts once all
// agents took it.
func (w *world) heal(t *testing.T) {
	t.Helper()
	began := time.Now()
	pushes, last := 0, ""
	equal := process.Within(process.Patience, func() bool {
		if !w.fleet.push(t.Context()) {
			return false
		}
		pushes++
		return process.Within(maxHealTime/2, func() bool { last = w.differences(t, w.gateway); return last == "" })
	})
	took := time.Since(began)
	results.note(func(r *tally) {
		r.checks++
		r.healPushes = max(r.healPushes, pushes)
		r.healTime = max(r.healTime, took)
		if equal {
			r.equal++
		}
	})
	require.True(t, equal, "the gateway's state is the nodes': %s", last)
	t.Logf("whole after %d push and %s", pushes, took.Round(100*time.Millisecond))
}

// recovered requires all that holds after a fault that is no node's.
func (w *world) recovered(t *testing.T) {
	t.Helper()
	defer w.unhindered(t) // of all, whatever else is wrong
	w.heal(t)
	w.await(t, "every node is judged by the fleet again", w.judged)
	w.heal(t) // and what the ticks since have changed
	w.innocent(t)
	w.calm(t)
}

// unhindered notes how long nodes waited for their agents since it was asked last, and
// requires that each got an answer.
func (w *world) unhindered(t *testing.T) {
	t.Helper()
	longest, late, expired := w.fleet.waits()
	results.note(func(r *tally) { r.longestPush, r.lateBeats = max(r.longestPush, longest), max(r.lateBeats, late) })
	t.Logf("%d beats had a push that took longer than %s; the longest took %s", late, latePush, longest)
	assert.Zero(t, expired, "pushes without an answer")
}

// crash kills a process and leaves it dead for a while.
func crash(dead time.Duration, members ...*member) {
	for _, m := range members {
		m.Kill()
	}
	time.Sleep(dead)
	for _, m := range members {
		m.Start()
	}
}

// accusations are the lines that name a straggler, at the gateway and at the
// agents, since it was asked last.
func (w *world) accusations() (lines []string) {
	kinds := [][]string{w.gateway.Log.Lines("Straggler ", "\twarn\t"), w.gateway.Log.Lines("Incident ", "\twarn\t")}
	for _, a := range w.agents {
		kinds = append(kinds, a.Log.Lines("takes itself for a straggler", "\twarn\t"))
	}
	if w.seen == nil {
		w.seen = make([]int, len(kinds))
	}
	for i, kind := range kinds {
		lines = append(lines, kind[w.seen[i]:]...)
		w.seen[i] = len(kind)
	}
	return lines
}

// innocent requires that no node was taken for a straggler since it was asked
// last.
func (w *world) innocent(t *testing.T) {
	t.Helper()
	named := w.accusations()
	verdicts := process.Scrape(t, w.gateway.Prom)
	require.NotNil(t, verdicts, "the gateway answers")
	accused := verdicts.Sum("gpu_node_straggler")
	results.note(func(r *tally) { r.falseEpisodes += max(len(named), int(accused)) })
	assert.Empty(t, named, "a healthy fleet has no straggler")
	assert.Zero(t, accused, "gpu.node.straggler")
}

// calm requires that the goroutines of every process are back where they were, and
// notes what is left of its memory.
func (w *world) calm(t *testing.T) {
	t.Helper()
	for _, m := range w.members() {
		var now level
		process.Within(20*time.Second, func() bool {
			now = m.level()
			return now.heap-m.before.heap <= maxHeapGrowth
		})
		assert.True(t, process.Within(process.Patience, func() bool {
			now.goroutines = m.level().goroutines
			return now.goroutines-m.before.goroutines <= maxGoroutineGrowth
		}), "%s: from %+v to %+v", m.name, m.before, now)
		results.note(func(r *tally) {
			r.heapGrowth = max(r.heapGrowth, int(now.heap-m.before.heap))
			r.goroutines = max(r.goroutines, now.goroutines-m.before.goroutines)
		})
	}
}
