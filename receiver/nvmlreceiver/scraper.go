// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"
	"github.com/gpu-collector/gpu-collector/internal/gpu/podresources"
	"github.com/gpu-collector/gpu-collector/internal/platform/statefile"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
)

// closeTimeout is what a hanging call may delay a shutdown by. It leaves most
// of the five seconds that a shutdown may take to the pipeline.
const closeTimeout = 2 * time.Second

// firstContact is how long a GPU may take to answer for the first time before it counts
// as lost. A driver's initialisation takes up to a minute.
const firstContact = 2 * time.Minute

// gpuScraper turns the poller's reports into metrics and log records. The
// controller calls its methods one at a time.
type gpuScraper struct {
	set       receiver.Settings
	session   session
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	recorder  *record.Recorder
	history   record.History
	resource  pcommon.Resource
	starts    startTimes
	changeLog changeLog
	logs      logs
	now       func() time.Time
	logsOnly  bool // no pipeline consumes metrics

	rubric    *gpuhealth.Rubric
	monitor   *gpuhealth.Monitor
	left      uint64 // what the monitor had dropped at the last scrape
	xids      xids
	roster    *roster.Roster
	inventory inventory
	until     time.Time // first answers are waited for; zero while NVML is not asked
	expected  int       // GPUs, as configured
	warned    bool      // that the number of GPUs is unknown
	pressure  cpuPressure
	relates   bool // hw.gpu.allocation is on
	pods      pods
	groups    groupJobs
	files     jobFiles
	held      map[allocation]bool // at the last scrape
	slices    sliceSeries

	generation uint64
	loads      driverLoads
	acks       acknowledger
	keeper     *statefile.Keeper
	directory  string // of the state file
}

func newScraper(cfg *Config, set receiver.Settings, telemetry *metadata.TelemetryBuilder) (*gpuScraper, error) {
	rubric, err := cfg.Health.rubric()
	if err != nil {
		return nil, err
	}
	s := &gpuScraper{
		set:       set,
		telemetry: telemetry,
		builder:   metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		resource:  nodeResource(cfg),
		changeLog: changeLog{log: set.Logger, rejected: map[rejection]struct{}{}, awaited: map[string]bool{}},
		now:       time.Now,
		rubric:    rubric,
		monitor:   gpuhealth.NewMonitor(rubric),
		inventory: inventory{sys: cfg.SysPath},
		expected:  cfg.ExpectedGPUs,
		pressure:  cpuPressure{proc: cfg.ProcPath, log: set.Logger},
	}
	s.loads = driverLoads{proc: cfg.ProcPath, sys: cfg.SysPath}
	s.acks = acknowledger{path: cfg.AcknowledgeFile, log: set.Logger}
	// The machine's id, since a disk may be cloned and a container may have another name each time.
	machine, _ := s.resource.Attributes().Get(gpusemconv.AttrHostID)
	s.roster = roster.New(machine.Str())
	s.directory = cfg.StateDirectory
	s.recorder = record.New(s.builder, cfg.Detail == DetailFull)
	s.logs = logs{resource: s.resource, version: set.BuildInfo.Version, now: s.now}
	s.pods = pods{log: set.Logger, failure: func() { telemetry.ReceiverNvmlPodResourcesFailures.Add(context.Background(), 1) }}
	s.groups, s.files = groupJobs{proc: cfg.ProcPath}, jobFiles{directory: cfg.JobMappingDirectory, log: set.Logger}
	if s.relates = cfg.Metrics.HwGpuAllocation.Enabled; s.relates {
		ask := cfg.PodResources
		ask.Timeout = min(ask.Timeout, cfg.Deadline)
		s.pods.client = podresources.New(ask)
	}
	s.session = session{releaseFile: cfg.ReleaseFile, log: set.Logger, open: func() *nvml.Poller {
		return nvml.NewPoller(s.pollerConfig(cfg))
	}}
	return s, nil
}

func (s *gpuScraper) pollerConfig(cfg *Config) nvml.Config {
	return nvml.Config{
		Library:  nvml.NewLibrary(cfg.LibraryPath, s.countFailure, s.timeCall),
		Deadline: cfg.Deadline,
		Retry:    cfg.RetryInterval,
		OnXid:    s.onXid,
		Roster:   s.roster,
		Activity: cfg.Metrics.HwGpuActivity.Enabled || cfg.Metrics.HwGpuIoRate.Enabled,
		PerLink:  cfg.Metrics.HwGpuNvlinkLinkErrors.Enabled || cfg.Metrics.HwGpuNvlinkLinkUp.Enabled,
		Detail:   cfg.Detail == DetailFull || cfg.Metrics.HwGpuNvlinkBitErrorRate.Enabled,
	}
}

// start does not touch NVML: nvmlInit may take long, and a receiver without a
// driver is no failure.
func (s *gpuScraper) start(context.Context, component.Host) error {
	s.keeper = statefile.Start(s.directory, s.set.ID.String(), stateForm, savedStates{s.monitor, s.roster}, s.now(), s.set.Logger)
	if bus, why := s.inventory.readable(); !bus {
		s.warnUnknownCount(why)
	}
	s.history.Resume(s.monitor.Known(), s.roster.Reasons())
	if s.logs.sink != nil {
		s.logs.sink.Start()
	}
	return nil
}

// warnUnknownCount warns once that neither a state file, nor the configuration, nor the bus
// has the number of GPUs.
func (s *gpuScraper) warnUnknownCount(bus string) {
	if s.warned || s.expected != 0 || s.keeper != nil {
		return
	}
	s.warned = true
	s.set.Logger.Warn("nobody can know whether a GPU was lost before this start; set `state_directory`, `expected_gpus`, or `sys_path` where the host's /sys is",
		zap.String("pci_bus", bus))
}

// interrupt makes a scrape that is under way return.
func (s *gpuScraper) interrupt() { s.session.interrupt() }

func (s *gpuScraper) shutdown(ctx context.Context) error {
	err := s.session.close()
	if s.logs.sink != nil {
		limited, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		s.logs.sink.Shutdown(limited)
	}
	s.keeper.Shutdown()
	gpuholders.OfProcess.Report(s, nil)
	s.telemetry.Shutdown()
	if err != nil {
		// Nothing that anyone could do, and no reason to fail the shutdown.
		s.set.Logger.Warn("NVML was left as it is", zap.Error(err))
	}
	return nil
}

func (s *gpuScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	// Read before the poll: nearly all readings are of that moment, also when
	// one GPU holds the report up until the deadline.
	now := s.now()
	ts := pcommon.NewTimestampFromTime(now)
	if s.until.IsZero() {
		s.until = now.Add(firstContact)
	}
	s.roster.Await(now.Before(s.until))
	allocations := s.pods.ask(ctx)
	report := s.session.poll(ctx)
	held := allocations()

	if errors.Is(report.Err, nvml.ErrClosed) || errors.Is(report.Err, errReleased) {
		s.until = time.Time{} // the next contact is a first one again
		s.roster.Await(false)
		return pmetric.NewMetrics(), nil
	}
	if n := report.Generation - s.generation; n > 0 {
		s.generation = report.Generation
		s.telemetry.ReceiverNvmlDriverGenerations.Add(ctx, int64(n))
		load, gone := s.loads.opened(&report)
		s.monitor.Opened(load, gone, now)
	}
	s.loads.note(&report)
	after := firstContact - s.until.Sub(now)
	s.changeLog.report(&report, after)

	s.recorder.Begin(ts, &s.history)
	s.countRejected(ctx, gpuhealth.FieldUUID, report.InvalidUUIDs)
	samples := s.valid(ctx, report.Samples)
	s.inventory.look(s.roster, now)
	if shown := s.inventory.shown; shown < report.Listed {
		// As in a container or a virtual machine without the host's bus.
		s.warnUnknownCount(fmt.Sprintf("it shows %d GPUs, and NVML lists %d", shown, report.Listed))
	}
	acknowledged := map[string]bool{}
	if s.count(samples, &report, now).Pending == 0 { // an operator may mean a GPU that is pending
		acknowledged = s.acknowledge(samples)
	}
	samples = s.end(samples, now)
	gpuholders.OfProcess.Report(s, holders(samples))
	for i := range samples {
		sample := &samples[i]
		verdict := s.monitor.Observe(sample, now)
		cause := roster.Cause("")
		if acknowledged[sample.UUID] {
			cause = roster.Acknowledged
		}
		s.logs.health(sample, &verdict, cause)
		s.recorder.Sample(sample)
		s.recorder.Verdict(&verdict)
	}
	s.keeper.Changed()
	if n := s.monitor.Dropped(); n > s.left {
		s.telemetry.ReceiverNvmlDroppedEvents.Add(ctx, int64(n-s.left))
		s.left = n
	}
	counts, last := s.xids.all()
	for i := range samples {
		if x := &samples[i]; x.Parent == "" {
			s.builder.RecordHwGpuXidLastDataPoint(ts, last[x.UUID], x.UUID)
		}
	}
	for x, count := range counts {
		s.recorder.Xids(x.uuid, x.code, s.rubric.Xid(x.code).Class, count)
	}
	count := s.count(samples, &report, now)
	if s.relates {
		jobs := s.groups.of(samples, holders(samples))
		s.files.read(samples, jobs)
		byMinor := s.pods.gpus(samples, held, max(count.Expected, report.Listed))
		s.held = relate(s.builder, ts, samples, held, byMinor, jobs, s.held)
	}
	if len(samples) > 0 || count.Expected > 0 { // else the node has no GPUs
		s.recorder.Node(count, s.pressure.read())
	}
	s.changeLog.missing(count, &report, s.roster, after)

	metrics := s.recorder.Emit(s.resource)
	s.starts.apply(metrics)
	s.slices.report(metrics, samples, ts)
	if s.logsOnly {
		return pmetric.NewMetrics(), nil
	}
	return metrics, nil
}

// holders are the processes of each GPU. One that is cut into slices has those of them.
func holders(samples []gpuhealth.Sample) map[string][]uint32 {
	gpus := map[string][]uint32{}
	for i := range samples {
		gpus[samples[i].UUID] = samples[i].PIDs
	}
	for i := range samples {
		delete(gpus, samples[i].Parent)
	}
	return gpus
}

// valid takes out of the samples what cannot be true, and the samples that
// have no identity.
func (s *gpuScraper) valid(ctx context.Context, samples []gpuhealth.Sample) []gpuhealth.Sample {
	valid := samples[:0]
	for i := range samples {
		rejected := samples[i].Validate()
		for _, field := range rejected {
			s.countRejected(ctx, field, 1)
		}
		s.changeLog.reject(&samples[i], rejected)
		if len(rejected) == 0 || rejected[0] != gpuhealth.FieldUUID {
			valid = append(valid, samples[i])
		}
	}
	return valid
}

func (s *gpuScraper) countRejected(ctx context.Context, field gpuhealth.Field, n int) {
	if n > 0 {
		s.telemetry.ReceiverNvmlRejectedFields.Add(ctx, int64(n), metric.WithAttributes(attribute.String("field", string(field))))
	}
}

// end reports the end of GPUs that are no longer waited for, and returns the
// samples of the others.
func (s *gpuScraper) end(samples []gpuhealth.Sample, now time.Time) []gpuhealth.Sample {
	for _, ended := range s.roster.Ended() {
		uuid := ended.ID.UUID
		samples = slices.DeleteFunc(samples, func(sample gpuhealth.Sample) bool { return sample.UUID == uuid || sample.Parent == uuid })
		if ended.Cause != roster.Acknowledged {
			s.set.Logger.Info("a GPU is no longer waited for", zap.String("gpu", uuid), zap.String("pci_bus_id", ended.ID.PCIBusID),
				zap.String("serial", ended.ID.Serial), zap.String("cause", string(ended.Cause)), zap.String("by", ended.By))
		}
		sample, verdict := gpuhealth.Sample{Identity: ended.ID, Reason: ended.Reason}, s.monitor.Forget(uuid, now)
		s.logs.health(&sample, &verdict, ended.Cause)
		s.recorder.Last(&sample, &verdict)
	}
	return samples
}

// count takes for lost what answered before, what was lost before and what the driver
// has reported. Until the bound of the first contact the rest is pending.
func (s *gpuScraper) count(samples []gpuhealth.Sample, r *nvml.Report, now time.Time) record.Census {
	c := record.Census{Expected: s.roster.Expected(s.expected, r.Listed)}
	for i := range samples {
		switch {
		case samples[i].Parent != "":
		case samples[i].Up():
			c.Found++
		default:
			c.Lost++
		}
	}
	for i := range r.NoReadings {
		if r.NoReadings[i].UUID == "" && r.NoReadings[i].Reported {
			c.Lost++
		}
	}
	missing := c.Expected - c.Found
	if now.Before(s.until) {
		c.Pending = max(0, missing-c.Lost)
	}
	c.Lost = missing - c.Pending
	return c
}

// onXid is called by the goroutine that waits for events and must not block it.
func (s *gpuScraper) onXid(ev gpuhealth.XidEvent) {
	if !gpuhealth.ValidUUID(ev.UUID) {
		s.countDropped()
		return
	}
	xid := s.monitor.ObserveXid(ev)
	s.logs.xid(&ev, &xid)
	s.xids.add(&ev, s.rubric.Knows(ev.Code))
	s.keeper.Changed()
}

func (s *gpuScraper) countDropped() {
	s.telemetry.ReceiverNvmlDroppedEvents.Add(context.Background(), 1)
}

func (s *gpuScraper) countFailure(function string, code nvml.Code) {
	s.telemetry.ReceiverNvmlCallFailures.Add(context.Background(), 1, metric.WithAttributes(
		attribute.String("function", function), attribute.String("return", code.String())))
}

func (s *gpuScraper) timeCall(d time.Duration) {
	s.telemetry.ReceiverNvmlCallDuration.Record(context.Background(), d.Seconds())
}
