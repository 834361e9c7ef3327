// SPDX-License-Identifier: Apache-2.0

// Command bigfleet serves the fleet view over nodes that it makes up, for the
// test of the page with fleets that no test machine could run. All nodes report
// anew in each interval.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension/web"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const (
	gpusPerNode = 8
	every       = 5 * time.Second // in which every node reports once
)

type options struct {
	nodes   int
	listen  string
	hostile bool
	sick    bool
	guard   guard
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 5000, "number of nodes")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:0", "address")
	flag.BoolVar(&o.hostile, "hostile", false, "some more nodes with names that look like others")
	flag.BoolVar(&o.sick, "sick", false, "a fleet with one trouble of each kind, in place of -nodes")
	flag.StringVar(&o.guard.authorization, "authorization", "", "what requests to the API must have as Authorization; any will do without")
	flag.StringVar(&o.guard.challenge, "challenge", "", "the WWW-Authenticate of a refusal")
	flag.StringVar(&o.guard.cookie, "cookie", "", "a cookie without which requests to the API lead to a login, as proxies do it")
	flag.Parse()
	figure.Main(o.run)
}

func (o *options) run(ctx context.Context) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return err
	}
	store := fleetstate.New(fleetstate.DefaultConfig())
	feed := fleetstate.NewFeed(store)
	update := func(tick int) {
		for i := tick % 10; i < o.nodes; i += 10 {
			report(store, i, tick)
		}
	}
	if o.sick {
		update = func(tick int) { sickFleet(store, tick) }
		sickEpisodes(store)
		update(0)
		update(1)
	} else if o.nodes > 0 {
		for tick := range 10 {
			update(tick)
		}
		groups(store)
		incident(store)
	}
	if o.hostile {
		hostile(store)
	}
	api := fleetapi.New(fleetapi.Options{Store: store, Feed: feed, Clients: 10, Version: "test", Pages: web.Handler()})
	go advance(ctx, feed, update)
	srv := &http.Server{Handler: o.guard.around(api), ReadHeaderTimeout: time.Second}
	go func() {
		<-ctx.Done()
		api.Close()
		_ = srv.Close()
	}()
	fmt.Printf("http://%s/\n", ln.Addr())
	if err := srv.Serve(ln); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// guard does for whatever is not the page what the Collector's server does with an
// authenticator, or a proxy with a login of its own.
type guard struct{ authorization, challenge, cookie string }

func (g guard) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie(g.cookie); g.cookie != "" && err != nil && strings.HasPrefix(r.URL.Path, "/api/") {
			http.Redirect(w, r, "/login", http.StatusFound)
			return
		}
		if g.authorization == "" || !strings.HasPrefix(r.URL.Path, "/api/") || r.Header.Get("Authorization") == g.authorization {
			next.ServeHTTP(w, r)
			return
		}
		if g.challenge != "" {
			w.Header().Set("WWW-Authenticate", g.challenge)
		}
		http.Error(w, "provided authorization does not match expected scheme or token", http.StatusUnauthorized)
	})
}

// advance has nodes report ten times per interval: update gets the number of the time.
func advance(ctx context.Context, feed *fleetstate.Feed, update func(tick int)) {
	t := time.NewTicker(every / 10)
	defer t.Stop()
	for tick := 1; ; tick++ {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			update(tick)
			feed.Advance(now)
		}
	}
}

func clusterOf(i int) string { return fmt.Sprintf("cluster-%c", 'a'+i%4) }

func groupOf(i int) string { return fmt.Sprintf("job-%02d/stage-%d", i/4%40, i%4) }

func report(store *fleetstate.Store, i, tick int) {
	k := fleetstate.Key{Cluster: clusterOf(i), Node: fmt.Sprintf("node-%05d", i)}
	now := time.Now()
	wave := math.Sin(float64(i)*1.7 + float64(tick)/5)
	sick, slow, idle := i%499 == 7, i%997 == 3, i%53 == 5
	u, ok := store.Begin(k, now)
	if !ok {
		return
	}
	u.SetGroup(groupOf(i))
	u.SetState("active", !idle)
	u.SetState("idle", idle)
	score, suspicion := 0.97+0.02*wave, math.Max(0, 0.1*wave)
	if slow {
		score, suspicion = 0.62, 1.4
		u.Set(reading.NodeStraggler, 1)
	}
	u.Set(reading.NodeHealthScore, score)
	u.Set(reading.AgentThreshold, 0.91)
	u.Set(reading.NodeSuspicion, suspicion)
	u.SetSignal(nodesignal.Throughput, 10*score)
	u.SetSignal(nodesignal.Compute, score)
	for g := range gpusPerNode {
		j := u.GPU(fmt.Sprintf("GPU-%05d-%d", i, g))
		u.SetInfo(j, fleetstate.Info{Model: "NVIDIA H100 80GB HBM3", Index: g})
		bad := sick && g == 2
		u.SetHealth(j, fleetstate.Healthy, !bad)
		u.SetHealth(j, fleetstate.Degraded, bad)
		u.SetUp(j, 1, "ok")
		if bad {
			u.SetReason(j, fleetstate.HealthReason{Reason: "remap_pending", Action: "reset_gpu"}, true)
			u.SetThrottle(j, "hw_thermal", true)
		}
		celsius := 58 + 8*wave + float64(g)
		if bad {
			celsius = 91
		}
		for field, v := range map[reading.Field]float64{
			reading.Temperature: math.Round(celsius), reading.Utilization: 0.9 + 0.1*wave, reading.Power: 600 + 60*wave, reading.PowerLimit: 700,
			reading.SMClock: 1.9e9, reading.SMClockLimit: 1.98e9, reading.MemoryUsed: 70 << 30, reading.MemoryLimit: 80 << 30,
		} {
			u.SetGPU(j, field, v)
		}
	}
	u.Commit(now)
}

// groups adds what the gateway reports of the peer groups.
func groups(store *fleetstate.Store) {
	for i := range 160 {
		k := fleetstate.GroupKey{Cluster: clusterOf(i), Group: groupOf(i)}
		store.UpdateGroup(k, time.Now(), func(u *fleetstate.GroupUpdate) {
			u.Set(reading.GroupMedian, 0.97)
			u.Set(reading.GroupThreshold, 0.91)
			u.Set(reading.GroupQuorum, 1)
			u.SetMedian(nodesignal.Throughput, 9.7)
			u.SetScale(nodesignal.Throughput, 0.015)
			u.SetMedian(nodesignal.Compute, 0.97)
			u.SetScale(nodesignal.Compute, 0.012)
		})
	}
}

// hostile are nodes with names that a page may show for others: turned around,
// with letters that are not visible, or alike once cluster and node are put together.
func hostile(store *fleetstate.Store) {
	now := time.Now()
	for _, k := range []fleetstate.Key{
		{Cluster: "cluster-a", Node: "node-\u202e00000"},
		{Cluster: "cluster-a", Node: "\u200bnode-00000"},
		{Cluster: "cluster-a", Node: "node-00000\u00a0"},
		{Cluster: "x\ny", Node: "z"},
		{Cluster: "x", Node: "y\nz"},
		{Cluster: "cluster-a", Node: "שלום-16"},
		{Cluster: "a,b", Node: `c,d\e`},
	} {
		u, ok := store.Begin(k, now)
		if !ok {
			continue
		}
		u.SetGroup("job\u202e/\u0007")
		u.SetState("active\u2066", true)
		u.Set(reading.NodeHealthScore, 0.1)
		u.Set(reading.NodeSuspicion, 9)
		j := u.GPU("GPU-\u202e0")
		u.SetHealth(j, fleetstate.Degraded, true)
		u.SetInfo(j, fleetstate.Info{Model: "\u2067H100"})
		u.SetReason(j, fleetstate.HealthReason{Reason: "row\u202eremap", Action: "\u0085reset"}, true)
		u.Commit(now)
	}
	store.PutEpisode(&episode.Episode{ID: "e3", Subject: "node", Cluster: "a,b", Node: `c,d\e`, Since: now, Updated: now, Text: "with commas"})
	store.PutEpisode(&episode.Episode{
		ID: "e2", Subject: "node", Cluster: "cluster-a", Node: "node-\u202e00000", Signal: "through\u200dput", Since: now, Updated: now,
		Reason: "\u202ehw", Action: "\u202ereset", GPU: "\u202eGPU", Text: "Straggler \u202e: slow",
		Evidence: []episode.Evidence{{Fact: "\u202efact", GPU: "\u202egpu"}},
	})
}

// incident opens the episode of one of the slow nodes.
func incident(store *fleetstate.Store) {
	now := time.Now()
	store.PutEpisode(&episode.Episode{
		ID: "e1", Subject: "node", Cluster: "cluster-d", Group: "job-00/stage-3", Node: "node-00003",
		Signal: "throughput", Severity: episode.SeverityMajor, Since: now.Add(-7 * time.Minute), Updated: now,
		Confidence: new(0.93), Gap: new(0.37), Value: new(6.2), Median: new(9.8), Rank: new(int64(1)), Active: new(int64(31)), Cost: new(92.0),
		Reason: "hw_thermal", Action: "check_cooling", GPU: "GPU-00003-2",
		Evidence: []episode.Evidence{
			{Fact: "hw_thermal", GPU: "GPU-00003-2", Unit: "1", Value: new(1.0), Peers: new(0.0)},
			{Fact: "temperature", GPU: "GPU-00003-2", Unit: "Cel", Value: new(91.0), Peers: new(63.0)},
			{Fact: "sm_clock", GPU: "GPU-00003-2", Unit: "1", Value: new(0.61), Peers: new(0.96)},
		},
		Text: "node-00003 has been 37 % slower than its peers for 7 minutes: the hardware lowers the clocks of GPU 2 because of heat.",
	})
}
