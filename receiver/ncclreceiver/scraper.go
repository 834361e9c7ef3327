// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"
)

const (
	readSize = 64 << 10
	// tailSize is how much is read of what a file had before it was first seen.
	tailSize = 8 << 20
	// patience is how long a file grows still whose process nobody knows, how often it is
	// looked for, and how often RAS is asked.
	patience = time.Minute
	// oldest is how long ago such a file was written that is worth a look.
	oldest = time.Hour
	// settled is how long nobody writes to a file of the text format until it is read.
	settled = time.Second
	// askTimeout is how long RAS may take.
	askTimeout = 5 * time.Second
	maxLogged  = 4096
)

// ncclScraper turns files into metrics. The controller calls its methods one at a time.
type ncclScraper struct {
	cfg       *Config
	log       *zap.Logger
	telemetry *metadata.TelemetryBuilder
	builder   *metadata.MetricsBuilder
	resource  pcommon.Resource
	procs     processes
	gpus      *gpuholders.Book
	ask       func(ctx context.Context, endpoint string) (*ras.Report, error)
	now       func() time.Time

	files  map[string]*file
	room   inspector.Room
	buffer []byte
	record inspector.Record
	logged map[string]bool
	beyond int           // files, at the last report
	parts  int           // that files of the text format may tell yet in this report
	told   map[rank]bool // those of the last report
	asked  time.Time
	answer *ras.Report // while something stands still
}

// file is one that a process writes.
type file struct {
	id      fileID
	pid     int
	of      *writer // nil for unknown
	sought  time.Time
	process *inspector.Process // nil where the process is gone
	lines   inspector.Lines
	offset  int64
	// written is when it was, as far as it told of operations; modified as it was read.
	written, modified time.Time
	// What it tells in this report.
	units         []inspector.Unit
	parts         []inspector.Part
	shared, still bool
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
	rb := metadata.NewResourceBuilder(cfg.ResourceAttributes)
	ownnode.Describe(rb, cfg.NodeName, cfg.Cluster)
	host, _ := os.Hostname() // without it no file is joined by its name
	return &ncclScraper{
		cfg: cfg, log: set.Logger, telemetry: telemetry, resource: rb.Emit(),
		builder: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set),
		procs:   processes{FS: procs, path: cfg.ProcPath, host: host},
		gpus:    &gpuholders.OfProcess, ask: ras.Ask, now: time.Now,
		files: map[string]*file{}, room: inspector.Room{Left: inspector.MaxMembers},
		buffer: make([]byte, readSize), logged: map[string]bool{}, told: map[rank]bool{},
	}, nil
}

func (s *ncclScraper) shutdown(context.Context) error {
	s.telemetry.Shutdown()
	return nil
}

func (s *ncclScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	now := s.now()
	s.read(ctx, now)
	ranks := s.tell(ctx, now)
	out := s.builder.Emit(metadata.WithResource(s.resource))
	s.end(ranks, now, out)
	return out, nil
}

// skip counts what is left out, and logs the first of a file and a reason.
func (s *ncclScraper) skip(path string, why metadata.AttributeSkipReason, n int64, err error) {
	if n == 0 {
		return
	}
	key := path + "\n" + why.String()
	if whole := why > metadata.AttributeSkipReasonFiles; !whole || !s.logged[key] { // a file counts once, lines each time
		s.telemetry.ReceiverNcclSkipped.Add(context.Background(), n, metric.WithAttributes(attribute.String("reason", why.String())))
	}
	if !s.logged[key] {
		if len(s.logged) >= maxLogged {
			clear(s.logged)
		}
		s.logged[key] = true
		s.log.Warn("a file of NCCL's Inspector is not read, or not all of it", zap.String("file", path), zap.Stringer("reason", why), zap.Error(err))
	}
}

var (
	errLine    = errors.New("a line is broken, too long, or tells of no operation")
	errBacklog = errors.New("it grew by more than `max_bytes`: what is before its last 8 MiB is left out")
	errRoom    = errors.New("the node has more than 1024 communicators of ranks, or a communicator more than 64 ranks or 8 kinds of operations in a process")
	errOwner   = errors.New("the process of its name is of another user, or younger than the file")
)

// fail skips a file or a folder that cannot be read.
func (s *ncclScraper) fail(path string, err error) {
	switch {
	case errors.Is(err, fs.ErrNotExist): // it has gone, or no job has run yet
	case errors.Is(err, errNoFile):
		s.skip(path, metadata.AttributeSkipReasonNotAFile, 1, err)
	case errors.Is(err, errTooMany):
		s.skip(path, metadata.AttributeSkipReasonFiles, 1, err)
	default:
		s.skip(path, metadata.AttributeSkipReasonUnreadable, 1, err)
	}
}

// read takes what all files have grown by.
func (s *ncclScraper) read(ctx context.Context, now time.Time) {
	s.procs.holders, s.parts = nil, inspector.MaxMembers
	l := listing{left: maxEntries, fail: s.fail}
	defer l.close()
	for _, dir := range s.cfg.Directories {
		l.look(dir)
	}
	// Those that are read already stay while their processes live, or they are written.
	stays := func(at found) int {
		age, f := now.Sub(at.info.ModTime()), s.files[at.path]
		if f != nil && (age < patience || f.of != nil && f.process != nil && age < oldest) {
			return 0
		}
		return 1
	}
	slices.SortFunc(l.files, func(a, b found) int {
		return cmp.Or(stays(a)-stays(b), b.info.ModTime().Compare(a.info.ModTime()), strings.Compare(a.path, b.path))
	})
	l.files = slices.CompactFunc(l.files, func(a, b found) bool { return a.path == b.path })
	beyond := max(0, len(l.files)-s.cfg.MaxFiles)
	l.files = l.files[:len(l.files)-beyond]
	s.skip("", metadata.AttributeSkipReasonFiles, int64(max(0, beyond-s.beyond)), errTooMany)
	s.beyond = beyond
	before := s.files
	s.files = make(map[string]*file, len(l.files))
	part := fair(s.cfg.MaxBytes, l.files, before)
	for i := range l.files {
		at := &l.files[i]
		f := before[at.path]
		if ctx.Err() == nil {
			f = s.take(at, f, part, now)
		}
		if f != nil {
			s.files[at.path] = f
		}
	}
	for path, f := range before {
		if s.files[path] != f {
			f.close()
		}
	}
}

// fair is how much of each file may be read: what small ones leave is for the large ones.
func fair(all int64, files []found, known map[string]*file) (part int64) {
	grown := make([]int64, len(files))
	for i := range files {
		size := files[i].info.Size()
		f := known[files[i].path]
		switch {
		case f == nil:
			grown[i] = min(size, tailSize)
		case f.process == nil && f.modified.Equal(files[i].info.ModTime()): // is not read
		case size < f.offset:
			grown[i] = size
		default:
			grown[i] = size - f.offset
		}
	}
	slices.Sort(grown)
	for i, size := range grown {
		if part = all / int64(len(grown)-i); size > part {
			return part
		}
		all -= size
	}
	return part + all
}

func (f *file) close() {
	if f != nil && f.process != nil {
		f.process.Close()
		f.process = nil
	}
}

// take reads one file, at most so many bytes of it.
func (s *ncclScraper) take(at *found, f *file, budget int64, now time.Time) *file {
	from, info, err := at.open()
	if err != nil {
		s.fail(at.path, err)
		return nil
	}
	defer func() { _ = from.Close() }()
	id, _ := idOf(info)
	if f != nil && f.id != id {
		f.close()
		f = nil
	}
	if textName.MatchString(at.name) {
		return s.takeText(at.path, from, info, f, budget, now)
	}
	switch {
	case f == nil:
	case f.process == nil && f.modified.Equal(info.ModTime()): // nobody's, as it was
		return f
	case f.process == nil:
		f = nil
	case f.of != nil && !s.procs.alive(f.of):
		f.close()
		f.modified = info.ModTime()
		return f
	}
	if f == nil || f.of == nil && now.Sub(f.sought) >= patience && info.Size() > f.offset {
		name := jsonName.FindStringSubmatch(at.name)
		pid, _ := strconv.Atoi(name[2]) // of nine digits at most
		of, stranger := s.procs.find(name[1], pid, info)
		if stranger {
			s.skip(at.path, metadata.AttributeSkipReasonOwner, 1, errOwner)
			return &file{id: id, modified: info.ModTime()}
		}
		if of == nil && now.Sub(info.ModTime()) > oldest { // of a job that has ended
			f.close()
			return &file{id: id, modified: info.ModTime()}
		}
		if f == nil {
			f = &file{id: id, pid: pid, process: inspector.NewProcess(&s.room)}
			f.seek(info.Size())
		}
		f.sought = now
		if f.of = of; of != nil {
			f.pid = of.pid
		}
	}
	s.takeLines(at.path, from, info, f, budget)
	return f
}

// seek goes to the last lines of a file of a size, which tell of the past.
func (f *file) seek(size int64) {
	f.process.Past = true
	f.offset = max(0, size-tailSize)
	f.lines.Reset(f.offset > 0)
}

// takeLines reads what a file has grown by, at most so many bytes.
func (s *ncclScraper) takeLines(path string, from io.ReaderAt, info os.FileInfo, f *file, budget int64) {
	var taken int64
	size := info.Size()
	f.modified = info.ModTime()
	if size < f.offset { // somebody cut it
		f.offset = 0
		f.lines.Reset(false)
	}
	if size-f.offset > s.cfg.MaxBytes {
		s.skip(path, metadata.AttributeSkipReasonBacklog, 1, errBacklog)
		f.seek(size)
	}
	var bad, full int64
	long := f.lines.Long
	for f.offset < size && taken < budget {
		n, err := from.ReadAt(s.buffer[:min(readSize, size-f.offset, budget-taken)], f.offset)
		f.lines.Add(s.buffer[:n], func(line []byte) {
			switch {
			case !s.record.Parse(line):
				bad++
			case !f.process.Add(&s.record):
				full++
			default:
				f.written = info.ModTime()
			}
		})
		f.offset += int64(n)
		taken += int64(n)
		if n == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				s.fail(path, err)
			}
			break
		}
	}
	if f.process.Past = f.process.Past && f.offset < size; f.offset < size {
		f.written = info.ModTime() // what is not read yet may be of an operation
	}
	s.skip(path, metadata.AttributeSkipReasonLine, bad+f.lines.Long-long, errLine)
	s.skip(path, metadata.AttributeSkipReasonCommunicators, full, errRoom)
}

// takeText reads a file of the text format, if it was written since it was read last, and
// is written no more.
func (s *ncclScraper) takeText(path string, from io.Reader, info os.FileInfo, f *file, budget int64, now time.Time) *file {
	if f == nil {
		id, _ := idOf(info)
		f = &file{id: id}
	}
	f.parts = nil
	if at := info.ModTime(); at.Equal(f.modified) || now.Sub(at) < settled || now.Sub(at) > oldest || budget < info.Size() {
		return f
	}
	f.modified = info.ModTime()
	text, err := io.ReadAll(io.LimitReader(from, inspector.MaxText))
	if err != nil {
		s.fail(path, err)
	}
	var bad int64
	f.parts, bad = inspector.ParseText(text)
	s.skip(path, metadata.AttributeSkipReasonLine, bad, errLine)
	beyond := max(0, len(f.parts)-s.parts)
	f.parts = f.parts[:len(f.parts)-beyond]
	s.parts -= len(f.parts)
	s.skip(path, metadata.AttributeSkipReasonCommunicators, int64(beyond), errRoom)
	return f
}
