// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
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

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuholders"
	"github.com/gpu-collector/gpu-collector/internal/node/ownnode"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"
)

const (
	readSize = 2 * inspector.MaxLine
	// tailSize is how much is read of what a file had before it was first seen.
	tailSize = 8 << 20
	// patience is how long a file without a known process counts as growing, how often its
	// process is looked for, and how often RAS is asked.
	patience = time.Minute
	// oldest is how long ago such a file was written that is worth a look.
	oldest = time.Hour
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
	gpus      *gpuholders.Registry
	ask       func(ctx context.Context, endpoint string) (*ras.Report, error)
	now       func() time.Time

	files    map[string]*file
	room     inspector.Room
	buffer   []byte
	logged   map[string]bool
	beyond   int           // files, at the last report
	reported map[rank]bool // those of the last report
	asked    time.Time
	answer   *ras.Report // while something stands still
}

// file is one that a process writes.
type file struct {
	id      fileID
	pid     int
	of      *writer // nil for unknown
	sought  time.Time
	process *inspector.Process // nil where the process is gone
	offset  int64
	middle  bool // the offset is in a line
	// written is when it last got an operation, modified when it last changed.
	written, modified time.Time
	inspector.Report
}

func newScraper(cfg *Config, set receiver.Settings) (*ncclScraper, error) {
	procs, err := procfs.NewFS(cfg.ProcPath)
	if err != nil {
		return nil, fmt.Errorf("`proc_path` is %q, must be where the host's /proc is: %w", cfg.ProcPath, err)
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
		buffer: make([]byte, readSize), logged: map[string]bool{}, reported: map[rank]bool{},
	}, nil
}

func (s *ncclScraper) shutdown(context.Context) error {
	s.telemetry.Shutdown()
	return nil
}

func (s *ncclScraper) scrape(ctx context.Context) (pmetric.Metrics, error) {
	now := s.now()
	s.read(ctx, now)
	ended := s.askRAS(ctx, now)
	ranks := s.report(now, ended)
	out := s.builder.Emit(metadata.WithResource(s.resource))
	s.end(ranks, now, out)
	return out, nil
}

// skip counts what is left out, and logs the first of a file and a reason.
func (s *ncclScraper) skip(path string, why metadata.AttributeSkipReason, n int, err error) {
	if n == 0 {
		return
	}
	s.telemetry.ReceiverNcclSkipped.Add(context.Background(), int64(n), metric.WithAttributes(attribute.String("reason", why.String())))
	if s.first(path + "\n" + why.String()) {
		s.log.Warn("a file of NCCL's Inspector is not read, or not all of it", zap.String("file", path), zap.Stringer("reason", why), zap.Error(err))
	}
}

// first reports whether it is asked about something for the first time.
func (s *ncclScraper) first(key string) bool {
	known := s.logged[key]
	if len(s.logged) >= maxLogged {
		clear(s.logged)
	}
	s.logged[key] = true
	return !known
}

var errBacklog = errors.New("it grew by more than `max_bytes`: what is before its last 8 MiB is left out")

// fail skips a file or a folder that cannot be read. It counts once.
func (s *ncclScraper) fail(path string, err error) {
	if !errors.Is(err, fs.ErrNotExist) && s.first(path) { // else it has gone, or no job has run yet
		s.skip(path, metadata.AttributeSkipReasonFile, 1, err)
	}
}

// read takes what all files have grown by.
func (s *ncclScraper) read(ctx context.Context, now time.Time) {
	s.procs.holders = nil
	l := listing{left: maxEntries, fail: s.fail}
	defer l.close()
	for _, dir := range s.cfg.Directories {
		l.look(dir)
	}
	// Those that are read already stay while their processes live, or they are written.
	stays := func(at found) int {
		age, f := now.Sub(at.info.ModTime()), s.files[at.path]
		if f != nil && (age < patience || f.of != nil && age < oldest) {
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
	s.skip("", metadata.AttributeSkipReasonFile, max(0, beyond-s.beyond), errTooMany)
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
		if f == nil {
			continue
		}
		if s.files[at.path] = f; f.process != nil {
			f.Report = f.process.Report(now.Sub(f.written))
		}
	}
	for path, f := range before {
		if s.files[path] != f {
			f.close()
		}
	}
}

// fair is how much may be read of each file that has lines to read.
func fair(all int64, files []found, known map[string]*file) int64 {
	grown := int64(0)
	for i := range files {
		switch f, info := known[files[i].path], files[i].info; {
		case f == nil:
			grown++
		case f.process == nil && f.modified.Equal(info.ModTime()): // is not read
		case f.offset != info.Size():
			grown++
		}
	}
	return all / max(grown, 1)
}

func (f *file) close() {
	if f.process != nil {
		f.process.Close()
		f.process = nil
	}
}

// take reads what one file has grown by, about so many bytes.
func (s *ncclScraper) take(at *found, f *file, budget int64, now time.Time) *file {
	from, info, err := at.open()
	if err != nil {
		s.fail(at.path, err)
		return nil
	}
	defer func() { _ = from.Close() }()
	id, _ := idOf(info)
	if f != nil && f.of != nil && !s.procs.alive(f.of) {
		f.close()
		f.of, f.modified = nil, info.ModTime()
	}
	if f != nil && f.process == nil && f.id == id && f.modified.Equal(info.ModTime()) {
		return f // as it was
	}
	if f != nil && (f.process == nil || f.id != id) { // another process writes it
		f.close()
		f = nil
	}
	if f == nil || f.of == nil && now.Sub(f.sought) >= patience && info.Size() > f.offset {
		name := fileName.FindStringSubmatch(path.Base(at.name))
		if f == nil {
			f = &file{id: id, process: inspector.NewProcess(&s.room)}
			f.pid, _ = strconv.Atoi(name[2]) // of nine digits at most
			f.seek(info.Size())
		}
		f.sought = now
		if f.of = s.procs.find(name[1], f.pid, info); f.of != nil {
			f.pid = int(f.of.pid)
		} else if now.Sub(info.ModTime()) > oldest { // of a job that has ended
			f.close()
			f.modified = info.ModTime()
			return f
		}
	}
	s.takeLines(at.path, from, info, f, budget)
	return f
}

// seek goes to the last lines of a file of a size, which are of the past.
func (f *file) seek(size int64) {
	f.process.Past = true
	f.offset = max(0, size-tailSize)
	f.middle = f.offset > 0
}

func (s *ncclScraper) takeLines(path string, from io.ReaderAt, info os.FileInfo, f *file, budget int64) {
	size := info.Size()
	f.modified = info.ModTime()
	if size < f.offset { // it was cut
		f.offset, f.middle = 0, false
	}
	if size-f.offset > s.cfg.MaxBytes {
		s.skip(path, metadata.AttributeSkipReasonBacklog, 1, errBacklog)
		f.seek(size)
	}
	bad, full, used := 0, 0, 1
	for end := f.offset + budget; used > 0 && f.offset < end; {
		n, err := from.ReadAt(s.buffer, f.offset)
		if err != nil && !errors.Is(err, io.EOF) {
			s.fail(path, err)
		}
		used = inspector.Lines(s.buffer[:n], func(line []byte) {
			switch err := f.process.Add(line); {
			case err == nil:
				f.written = info.ModTime()
			case errors.Is(err, inspector.ErrRoom):
				full++
			case !f.middle:
				bad++
			}
			f.middle = false
		})
		f.offset += int64(used)
	}
	if f.process.Past = f.process.Past && used > 0 && f.offset < size; used > 0 && f.offset < size {
		f.written = info.ModTime() // what is not read yet may be of an operation
	}
	s.skip(path, metadata.AttributeSkipReasonLine, bad, inspector.ErrLine)
	s.skip(path, metadata.AttributeSkipReasonCommunicators, full, inspector.ErrRoom)
}
