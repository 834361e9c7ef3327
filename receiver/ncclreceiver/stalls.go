// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"
)

const (
	// askAgain is between two questions about a job: each gathers from all ranks.
	askAgain = time.Minute
	// answerWait is how long a scrape waits for an answer, which takes milliseconds in a
	// job of thousands of ranks. One that takes longer is taken by the next scrape.
	answerWait = 2 * time.Second
	// longer than the longest pause is no pause of a job in lockstep.
	longer = 2 * time.Second
	// turn is how long the agents of a job's nodes wait for one another, so that RAS is
	// asked once a minute and job. Two questions are enough, and most is where no answer
	// comes.
	turn      = 2 * time.Minute
	mostAsked = 5
	// dumpEach is the least time between two dumps of the Prometheus form
	// (inspectorPromValidateInterval).
	dumpEach = 30 * time.Second
)

// stalls asks NCCL's RAS service about jobs of which nothing ends. One question is under
// way at a time; scrapes do not wait for it.
type stalls struct {
	cfg       *RASConfig
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	jobs      map[string]*stall
	answers   chan answer
	asking    bool
	logged    map[string]bool

	stop context.CancelFunc
	ctx  context.Context
	done sync.WaitGroup
}

// stall of one job.
type stall struct {
	since    time.Time // its last operation's end
	askedAt  time.Time
	asked    int // about this stall
	next     time.Time
	first    ras.Report
	settled  bool // two answers were compared
	laggards []ras.Laggard
}

type answer struct {
	job    string
	since  time.Time
	report ras.Report
	err    error
}

func newStalls(cfg *RASConfig, log *zap.Logger, telemetry *metadata.TelemetryBuilder) *stalls {
	s := &stalls{cfg: cfg, log: log, telemetry: telemetry, jobs: map[string]*stall{}, answers: make(chan answer, 1), logged: map[string]bool{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

func (s *stalls) shutdown() {
	s.stop()
	s.done.Wait()
}

// look follows the jobs, by their files, and asks about one that stands still.
func (s *stalls) look(ctx context.Context, jobs map[string][]*file, now time.Time) {
	if !s.cfg.Enabled {
		return
	}
	s.hear(ctx, 0, now)
	for job := range s.jobs {
		if len(jobs[job]) == 0 {
			delete(s.jobs, job)
		}
	}
	for job, files := range jobs {
		last := progress(files)
		if last.IsZero() {
			continue
		}
		st := s.jobs[job]
		if st == nil {
			st = &stall{}
			s.jobs[job] = st
		}
		st.move(last)
		if suspected := max(s.cfg.After, pause(files)+longer); now.Sub(last) >= suspected && !s.asking && !st.settled && st.asked < mostAsked {
			if st.next.IsZero() {
				// The node of the first ranks asks first, the others where that brought nothing.
				st.next = now.Add(time.Duration(place(files)) * turn)
			}
			if !now.Before(st.next) && now.Sub(st.askedAt) >= askAgain {
				s.ask(job, st, files, now)
			}
			if s.asking {
				s.hear(ctx, answerWait, now)
			}
		}
	}
}

// hear takes an answer that has come, or comes in time.
func (s *stalls) hear(ctx context.Context, wait time.Duration, now time.Time) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var a answer
	select {
	case a = <-s.answers: // which a wait of no time could miss
	default:
		select {
		case a = <-s.answers:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
	s.asking = false
	s.take(ctx, &a, now)
}

// move notes when an operation ended last.
func (st *stall) move(last time.Time) {
	if last.After(st.since) {
		*st = stall{since: last, askedAt: st.askedAt}
	}
}

// pause is the longest that the job made before.
func pause(files []*file) (least time.Duration) {
	for i, f := range files {
		longest := f.told.Longest
		if f.dumps {
			longest = max(longest, dumpEach)
		}
		if i == 0 || longest < least {
			least = longest
		}
	}
	return least
}

// progress is when anything of the job ended last.
func progress(files []*file) (last time.Time) {
	for _, f := range files {
		for _, c := range f.told.Communicators {
			if c.Progress.After(last) {
				last = c.Progress
			}
		}
	}
	return last
}

// place counts the nodes before this one, if each has as many ranks.
func place(files []*file) int64 {
	least := int64(-1)
	for _, f := range files {
		if f.of.rank >= 0 && (least < 0 || f.of.rank < least) {
			least = f.of.rank
		}
	}
	return max(least, 0) / int64(len(files))
}

func (s *stalls) ask(job string, st *stall, files []*file, now time.Time) {
	ids := map[string]bool{}
	for _, f := range files {
		for id, c := range f.told.Communicators {
			if !c.Unidentified {
				ids[ras.Normal(id)] = true
			}
		}
	}
	if len(ids) == 0 {
		return // RAS tells of communicators by their hash
	}
	s.asking = true
	st.asked++
	st.askedAt = now
	since := st.since
	s.done.Go(func() {
		report, err := ras.Ask(s.ctx, s.cfg.Endpoint, func(id string) bool { return ids[id] })
		s.answers <- answer{job, since, report, err}
	})
}

// take compares an answer with the one before.
func (s *stalls) take(ctx context.Context, a *answer, now time.Time) {
	outcome := "answered"
	switch {
	case errors.Is(a.err, ras.ErrTooOld):
		outcome = "too_old"
	case a.err != nil:
		outcome = "failed"
	case len(a.report) == 0:
		outcome = "other_job" // the port is shared, and the kernel picks a process
	}
	s.telemetry.ReceiverNcclRasPolls.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", outcome)))
	st := s.jobs[a.job]
	if st == nil || !st.since.Equal(a.since) {
		return // it goes on
	}
	switch {
	case outcome == "too_old":
		st.asked = mostAsked
		fallthrough
	case a.err != nil:
		if !s.logged[outcome] {
			s.logged[outcome] = true
			s.log.Warn("a job stands still, and NCCL's RAS service does not tell who holds it up",
				zap.String("job", a.job), zap.String("endpoint", s.cfg.Endpoint), zap.Error(a.err))
		}
	case len(a.report) == 0:
	case st.first == nil:
		st.first = a.report
	default:
		st.settled, st.laggards = true, ras.Laggards(st.first, a.report)
		st.first = nil
		s.log.Info("a job stands still; NCCL's RAS service has answered",
			zap.String("job", a.job), zap.Duration("for", now.Sub(st.since)), zap.Int("laggards", len(st.laggards)))
	}
}

// maxLaggards bounds those that are told of a job.
const maxLaggards = 16

// tell records the laggards of a job, by the ids that its ranks have.
func (s *stalls) tell(mb *metadata.MetricsBuilder, ts pcommon.Timestamp, job string, files []*file) {
	st := s.jobs[job]
	if st == nil {
		return
	}
	for _, l := range st.laggards[:min(len(st.laggards), maxLaggards)] {
		state := metadata.AttributeGpuCollectiveLaggardStateBehind
		if l.Missing {
			state = metadata.AttributeGpuCollectiveLaggardStateMissing
		}
		mb.RecordGpuCollectiveLaggardDataPoint(ts, 1, state, l.Host,
			metadata.WithGpuCommunicatorIDMetricAttribute(own(files, l.Communicator)), metadata.WithGpuCommunicatorRankMetricAttribute(l.Rank))
	}
}

// own is a communicator's id as the Inspector writes it.
func own(files []*file, normal string) string {
	for _, f := range files {
		for id := range f.told.Communicators {
			if ras.Normal(id) == normal {
				return id
			}
		}
	}
	return normal
}
