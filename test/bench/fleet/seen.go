// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

type seen struct {
	pushed         fleetpush.Report
	gateway, shard []harness.Look
	scrapes, asks  []time.Duration
	scraped        int64        // bytes of the last scrape
	late           atomic.Int64 // scrapes and questions that were given up
	episodes       int          // that are false
}

func (o *options) measure(ctx context.Context, s *side) (err error) {
	measuring, end := context.WithCancel(ctx)
	var (
		others sync.WaitGroup
		looked error
	)
	others.Go(func() {
		s.seen.scrapes, s.seen.scraped = s.read(measuring, scrape, func(int) string { return "http://" + s.gateway.Scrape + "/metrics" })
	})
	others.Go(func() {
		s.seen.asks, _ = s.read(measuring, ask, func(i int) string { return o.question(s.gateway.View, i) })
	})
	others.Go(func() { looked = o.look(measuring, s) })
	s.seen.pushed, err = o.push(ctx, s, o.span)
	end()
	others.Wait()
	return errors.Join(err, looked, s.look())
}

// question is one of the page's to a view, of pages of 100 nodes.
func (o *options) question(view string, i int) string {
	queries := []string{"", "&page=" + strconv.Itoa(max(1, o.nodes/200)), "&node=node-00001*", "&straggler=true", "&min_utilization=0.5"}
	return "http://" + view + "/api/v1/nodes?limit=100" + queries[i%len(queries)]
}

// read reads a URL once in so long, as Prometheus does: what takes longer than until the
// next time, or a second, is given up. All sides have as many turns, each begins at
// another time, and what has begun is read to its end.
func (s *side) read(ctx context.Context, every time.Duration, url func(i int) string) (took []time.Duration, size int64) {
	if harness.Wait(ctx, every*time.Duration(2*s.index+1)/time.Duration(2*s.sides)) != nil {
		return nil, 0
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	client := http.Client{Timeout: max(every, time.Second)}
	for i := 0; ; i++ {
		began, whole := time.Now(), int64(0)
		answer, err := client.Get(url(i))
		if err == nil {
			whole, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				err = errors.New(answer.Status)
			}
		}
		if err == nil {
			took, size = append(took, time.Since(began)), whole
		} else {
			harness.Progress("%s: %v", s.gateway.Name, err)
			s.seen.late.Add(1)
		}
		select {
		case <-ctx.Done():
			return took, size
		case <-tick.C:
		}
	}
}

// look looks at the processes 200 times, but not more than once in a second.
func (o *options) look(ctx context.Context, s *side) error {
	for {
		if err := s.look(); err != nil {
			return err
		}
		if harness.Wait(ctx, max(time.Second, o.span/200)) != nil {
			return nil
		}
	}
}

func (s *side) look() error {
	l, err := s.gateway.Look()
	s.seen.gateway = append(s.seen.gateway, l)
	if err != nil || s.shard == nil {
		return err
	}
	l, err = s.shard.Look()
	s.seen.shard = append(s.seen.shard, l)
	return err
}

// episodes is how many of up to a thousand a gateway has reported. Missing nodes do not count:
// there are some where the machine skips their pushes.
func (s *side) episodes(ctx context.Context) (n int, err error) {
	client, err := fleetclient.NewClientWithResponses("http://" + s.gateway.View)
	if err != nil {
		return 0, err
	}
	answer, err := client.ListEpisodesWithResponse(ctx, &fleetclient.ListEpisodesParams{Limit: new(int64(1000))})
	switch {
	case err != nil:
		return 0, err
	case answer.JSON200 == nil:
		return 0, fleetclient.AnswerError(answer.StatusCode(), answer.Body)
	}
	for _, e := range answer.JSON200.Episodes {
		if e.Subject != fleetclient.EpisodeSubjectMissing {
			n++
		}
	}
	return n, nil
}

type row struct {
	name, unit string
	of         func(s *seen) float64
}

func (o *options) print(w io.Writer, sides []*side) error {
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	rows := []row{
		{"pushes accepted", "", func(s *seen) float64 { return float64(s.pushed.Accepted) }},
		{"refused, or not made in time", "", func(s *seen) float64 {
			n := s.pushed.Pushes - s.pushed.Accepted
			for _, skipped := range s.pushed.Skipped {
				n += skipped
			}
			return float64(n)
		}},
		{"push p50", "ms", func(s *seen) float64 { return 1e3 * s.pushed.Latency.P50 }},
		{"push p99", "ms", func(s *seen) float64 { return 1e3 * s.pushed.Latency.P99 }},
		{"API p50", "ms", func(s *seen) float64 { return ms(figure.Quantile(s.asks, 0.5)) }},
		{"API p99", "ms", func(s *seen) float64 { return ms(figure.Quantile(s.asks, 0.99)) }},
		{"scrape, the median", "s", func(s *seen) float64 { return figure.Quantile(s.scrapes, 0.5).Seconds() }},
		{"scrape", "MB", func(s *seen) float64 { return float64(s.scraped) / 1e6 }},
		{"scrapes and questions given up", "", func(s *seen) float64 { return float64(s.late.Load()) }},
		{"nodes with a threshold", "", func(s *seen) float64 { return float64(s.pushed.NodesWithThreshold) }},
		{"false verdicts and episodes", "", func(s *seen) float64 { return float64(s.pushed.FalseVerdicts) + float64(s.episodes) }},
	}
	rows = append(rows, o.held("gateway", func(s *seen) []harness.Look { return s.gateway })...)
	if o.shard {
		rows = append(rows, o.held("shard", func(s *seen) []harness.Look { return s.shard })...)
	}
	head := []string{"", "unit", "this"}
	if len(sides) > 1 {
		head = append(head, "base", "this/base")
	}
	table := [][]string{head}
	for _, r := range rows {
		values := make([]float64, len(sides))
		line := []string{r.name, r.unit}
		for i, s := range sides {
			values[i] = r.of(&s.seen)
			line = append(line, figure.Digits(values[i]))
		}
		if len(sides) > 1 {
			line = append(line, figure.Digits(values[0]/values[1]))
		}
		table = append(table, line)
	}
	return harness.Table(w, table)
}

func (o *options) held(name string, looks func(*seen) []harness.Look) []row {
	rows := []row{{name + " CPU", "cores", func(s *seen) float64 {
		all := looks(s)
		return (all[len(all)-1].CPU - all[0].CPU) / o.span.Seconds()
	}}}
	for _, m := range []struct {
		name, unit string
		of         func(harness.Look) float64
	}{
		{"resident", "MB", func(l harness.Look) float64 { return l.Resident / 1e6 }},
		{"live heap", "MB", func(l harness.Look) float64 { return l.Live / 1e6 }},
		{"files", "", func(l harness.Look) float64 { return l.Files }},
	} {
		values := func(s *seen) (v []float64) {
			for _, l := range looks(s) {
				v = append(v, m.of(l))
			}
			return v
		}
		rows = append(rows, row{name + " " + m.name + ", most", m.unit, func(s *seen) float64 { return slices.Max(values(s)) }})
		if o.span >= 10*time.Minute {
			rows = append(rows, row{name + " " + m.name + " grew by", "%", func(s *seen) float64 { return 100 * growth(values(s)) }})
		}
	}
	return rows
}

// growth is from the middle third of a run to its last, of the first deciles: of what
// is there whatever is on its way. In the first third tables fill.
func growth(v []float64) float64 {
	n := len(v)
	if n < 9 {
		return math.NaN()
	}
	low := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/10] }
	return low(v[2*n/3:])/low(v[n/3:2*n/3]) - 1
}
