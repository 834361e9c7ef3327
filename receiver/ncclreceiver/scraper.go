// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/procfs"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/counterstart"
	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

// maxLogged bounds the failures that are remembered to be logged.
const maxLogged = 1024

// ncclScraper turns files into metrics. The controller calls its methods one at a time.
type ncclScraper struct {
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	starts    counterstart.Times
	procs     processes
	now       func() time.Time

	files  map[string]*file
	buffer []byte
	record inspector.Record
	good   int64
	bad    int64
	logged map[string]bool
	stalls *stalls
}

func newScraper(cfg *Config, set receiver.Settings) (*ncclScraper, error) {
	procs, err := procfs.NewFS(cfg.ProcPath)
	if err != nil {
		return nil, err
	}
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &ncclScraper{
		cfg: cfg, log: set.Logger, telemetry: telemetry, now: time.Now,
		procs:   processes{FS: procs, path: cfg.ProcPath, gpus: &gpuholders.OfProcess},
		builder: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		files:   map[string]*file{}, buffer: make([]byte, readSize), logged: map[string]bool{},
		stalls: newStalls(&cfg.RAS, set.Logger, telemetry),
	}, nil
}

func (s *ncclScraper) shutdown(context.Context) error {
	s.stalls.shutdown()
	s.telemetry.Shutdown()
	return nil
}

func (s *ncclScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	s.read(ctx)
	now := s.now()
	ts := pcommon.NewTimestampFromTime(now)
	jobs := map[string][]*file{}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		if f.of.gpu == "" {
			s.procs.locate(&f.of) // whose first context may have come since
		}
		jobs[f.of.job] = append(jobs[f.of.job], f)
	}
	s.stalls.look(ctx, jobs, now)
	out := pmetric.NewMetrics()
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		name(jobs[job])
		pods := s.pods(jobs[job])
		for i, of := range slices.SortedFunc(maps.Keys(pods), pod.compare) {
			for _, f := range pods[of] {
				s.tell(ts, now, f)
			}
			if i == 0 {
				s.stalls.tell(s.builder, ts, job, jobs[job])
			}
			rb := metadata.NewResourceBuilder(s.cfg.ResourceAttributes)
			ownnode.Describe(rb, s.cfg.NodeName, s.cfg.Cluster)
			if job != "" {
				rb.SetGpuJobID(job)
			}
			of.describe(rb)
			metrics := s.builder.Emit(metadata.WithResource(rb.Emit()))
			metrics.ResourceMetrics().MoveAndAppendTo(out.ResourceMetrics())
		}
	}
	s.starts.Apply(out)
	return out, nil
}

// read takes what all files have grown by.
func (s *ncclScraper) read(ctx context.Context) {
	for _, f := range s.files {
		f.seen = false
	}
	s.procs.forget()
	left := s.cfg.MaxBytes
	s.good, s.bad = 0, 0
	for _, dir := range s.cfg.Directories {
		for _, name := range []string{jsonFiles, promFiles} {
			paths, err := filepath.Glob(filepath.Join(dir, name))
			if err != nil {
				continue // Validate has seen to it
			}
			for _, path := range paths {
				if ctx.Err() == nil {
					left -= s.take(ctx, path, left)
				}
			}
		}
	}
	maps.DeleteFunc(s.files, func(_ string, f *file) bool { return !f.seen })
	for told, n := range map[bool]int64{true: s.good, false: s.bad} {
		if n > 0 {
			s.telemetry.ReceiverNcclLines.Add(ctx, n, metric.WithAttributes(attribute.Bool("operation", told)))
		}
	}
}

// take reads one file, and returns how many bytes of it.
func (s *ncclScraper) take(ctx context.Context, path string, budget int64) int64 {
	from, identity, owner, err := open(path, os.O_RDONLY)
	if err != nil {
		if why := causeOf(err); why != "" {
			s.fail(ctx, path, why, err)
		}
		return 0
	}
	defer func() { _ = from.Close() }()
	info, err := from.Stat()
	if err != nil {
		s.fail(ctx, path, unreadable, err)
		return 0
	}
	f := s.files[path]
	if f != nil && (!f.dumps && f.identity != identity || !f.of.alive(s.procs.FS)) {
		delete(s.files, path)
		f = nil
	}
	if f == nil {
		if f = s.begin(ctx, path, identity, owner, info); f == nil {
			return 0
		}
	}
	f.seen = true
	dropped, long := f.told.Dropped, f.lines.Long
	defer func() {
		if n := f.told.Dropped - dropped + int64(f.lines.Long-long); n > 0 {
			s.telemetry.ReceiverNcclDropped.Add(ctx, n)
		}
	}()
	if f.dumps {
		return s.takeDump(ctx, f, from, budget)
	}
	strange := false
	taken, err := f.read(from, info.Size(), budget, s.buffer, func(line []byte) {
		if s.record.Parse(line) {
			s.good++
			f.told.Add(&s.record)
			return
		}
		s.bad++
		strange = strange || !s.record.Named() // else it took no time
	})
	if strange || f.lines.Long > long {
		s.fail(ctx, path, noOperation, nil)
	}
	if err != nil {
		s.fail(ctx, path, unreadable, err)
	}
	if s.cfg.ReleaseRead {
		if err := f.release(); err != nil {
			s.fail(ctx, path, notReleased, err)
		}
	}
	return taken
}

// takeDump reads a file of the Prometheus form.
func (s *ncclScraper) takeDump(ctx context.Context, f *file, from *os.File, budget int64) int64 {
	kinds, bad, at, taken, err := f.readDump(from, s.now(), budget)
	s.bad += int64(bad)
	switch {
	case errors.Is(err, errTooLong):
		s.fail(ctx, f.path, tooLong, err)
	case err != nil:
		s.fail(ctx, f.path, unreadable, err)
	default:
		s.good += int64(len(kinds))
		f.told.Dump(kinds, at)
		if bad > 0 || taken > 0 && len(kinds) == 0 && f.taken.Equal(at) { // else somebody is writing
			s.fail(ctx, f.path, noOperation, nil)
		}
	}
	return taken
}

// begin finds the process of a file. What the file has already was before our time, but
// for a dump that the process has written.
func (s *ncclScraper) begin(ctx context.Context, path string, identity fileIdentity, owner uint64, info os.FileInfo) *file {
	w, ok := writerOf(filepath.Base(path))
	if !ok {
		return nil
	}
	taken := make(map[int]bool, len(s.files))
	for _, f := range s.files {
		taken[f.of.pid] = true
	}
	of, ok := s.procs.find(w, identity, taken)
	if !ok {
		s.fail(ctx, path, noProcess, nil)
		return nil
	}
	if owner != of.uid {
		s.fail(ctx, path, foreignUser, nil)
		return nil
	}
	if len(s.files) >= s.cfg.MaxFiles {
		s.fail(ctx, path, tooMany, nil)
		return nil
	}
	f := &file{path: path, of: of, identity: identity, told: inspector.NewProcess(), dumps: w.gpu != ""}
	if f.dumps && info.ModTime().Before(of.began(s.procs.FS)) {
		f.taken = info.ModTime() // another process wrote it
	}
	if f.offset = info.Size(); f.offset > 0 {
		f.lines.Skip() // it may end in half a line
		f.offset--
	}
	s.files[path] = f
	return f
}

// fail counts a failure, and logs the first of its sort.
func (s *ncclScraper) fail(ctx context.Context, path string, why cause, err error) {
	s.telemetry.ReceiverNcclFailures.Add(ctx, 1, metric.WithAttributes(attribute.String("cause", string(why))))
	if key := path + string(why); !s.logged[key] && len(s.logged) < maxLogged {
		s.logged[key] = true
		if err == nil {
			err = errors.New(errCause[why])
		}
		s.log.Warn(cmp.Or(outcomes[why], "a file of NCCL's Inspector is not read"), zap.String("file", path), zap.String("cause", string(why)), zap.Error(err))
	}
}

// tell records the metrics of one process.
func (s *ncclScraper) tell(ts pcommon.Timestamp, now time.Time, f *file) {
	if share, known := f.told.Take(); known {
		s.builder.RecordGpuCollectiveTimeShareDataPoint(ts, share, f.options()...)
	}
	if f.told.Longest > 0 {
		s.builder.RecordGpuCollectiveLongestPauseDataPoint(ts, f.told.Longest.Seconds(), f.options()...)
	}
	for _, id := range slices.Sorted(maps.Keys(f.told.Communicators)) {
		c := f.told.Communicators[id]
		options := f.communicator(id, c)
		s.builder.RecordGpuCollectiveLastProgressDataPoint(ts, max(0, now.Sub(c.Progress).Seconds()), c.Ranks, c.Nodes, options...)
		if c.Share > 0 {
			s.builder.RecordGpuCommunicatorTimeShareDataPoint(ts, c.Share, c.Ranks, c.Nodes, options...)
		}
		if key, sums, known := f.told.Main(id); known {
			s.builder.RecordGpuCommunicatorBandwidthDataPoint(ts, sums.Best, c.Ranks, c.Nodes, key.Operation, key.Size, options...)
		}
	}
	for key, sums := range f.told.Sums {
		c := f.told.Communicators[key.Communicator]
		options := f.communicator(key.Communicator, c)
		if sums.Operations > 0 {
			s.builder.RecordGpuCollectiveOperationsDataPoint(ts, sums.Operations, c.Ranks, c.Nodes, key.Operation, key.Size, options...)
			s.builder.RecordGpuCollectiveIoDataPoint(ts, sums.Bytes, c.Ranks, c.Nodes, key.Operation, key.Size, options...)
			s.builder.RecordGpuCollectiveTimeDataPoint(ts, sums.Time.Seconds(), c.Ranks, c.Nodes, key.Operation, key.Size, options...)
		}
		if sums.Bandwidth > 0 {
			s.builder.RecordGpuCollectiveBandwidthDataPoint(ts, sums.Bandwidth, c.Ranks, c.Nodes, key.Operation, key.Size, options...)
		}
		if sums.Each > 0 {
			s.builder.RecordGpuCollectiveDurationDataPoint(ts, sums.Each.Seconds(), c.Ranks, c.Nodes, key.Operation, key.Size, options...)
		}
	}
	f.told.Renew()
}

// name tells the ranks of a job apart. Those of one name, which must be of several jobs
// that do not say so, are known by their processes.
func name(job []*file) {
	type who struct {
		rank, localRank int64
		gpu             string
	}
	count := map[who]int{}
	of := func(f *file) who { return who{f.of.rank, f.of.localRank, f.of.gpu} }
	for _, f := range job {
		count[of(f)]++
	}
	for _, f := range job {
		f.nameless = count[of(f)] > 1 || of(f) == who{-1, -1, ""}
	}
}

// options are what is known of a rank.
func (f *file) options() (all []metadata.MetricAttributeOption) {
	if f.of.gpu != "" {
		all = append(all, metadata.WithHwIDMetricAttribute(f.of.gpu))
	}
	if f.nameless {
		return append(all, metadata.WithProcessPidMetricAttribute(int64(f.of.pid)))
	}
	if f.of.rank >= 0 {
		all = append(all, metadata.WithGpuJobRankMetricAttribute(f.of.rank))
	}
	if f.of.localRank >= 0 {
		all = append(all, metadata.WithGpuJobLocalRankMetricAttribute(f.of.localRank))
	}
	return all
}

func (f *file) communicator(id string, c *inspector.Communicator) []metadata.MetricAttributeOption {
	all := f.options()
	if !c.Unidentified {
		all = append(all, metadata.WithGpuCommunicatorIDMetricAttribute(id), metadata.WithGpuCommunicatorRankMetricAttribute(c.Rank))
	}
	if c.Name != "" {
		all = append(all, metadata.WithGpuCommunicatorNameMetricAttribute(c.Name))
	}
	return all
}
