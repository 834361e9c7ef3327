// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// ErrEmpty says that the input has no header line.
var ErrEmpty = errors.New("it is empty: the first line must name the columns")

// Options are the bounds of a Reader. Zero values mean the defaults.
type Options struct {
	// MaxLineBytes is the longest line that is read, default 64 KiB.
	MaxLineBytes int
	// MaxStepRows is the most rows of one step, default 1,000,000.
	MaxStepRows int
	// MaxGPUs is the most GPUs the DCGM form tells apart, default 131,072.
	MaxGPUs int
	// StepWindow is how far from the first row's time a row may be and still
	// belong to its step.
	StepWindow time.Duration
	// OnSkip, if set, is told of each malformed row, by the line's number from 1.
	// Unknown metrics and values that DCGM marks as missing are ordinary and
	// only counted.
	OnSkip func(line int64, reason Reason, detail string)
}

func (o Options) withDefaults() Options {
	if o.MaxLineBytes <= 0 {
		o.MaxLineBytes = 64 << 10
	}
	if o.MaxStepRows <= 0 {
		o.MaxStepRows = 1_000_000
	}
	if o.MaxGPUs <= 0 {
		o.MaxGPUs = 131_072
	}
	return o
}

// maxUnknownNames bounds the names of unknown metrics that are kept.
const maxUnknownNames = 64

// Stats count what a Reader has seen so far.
type Stats struct {
	// Bytes is how much of the input the lines read so far take.
	Bytes int64
	// Rows and Steps are what Next has returned.
	Rows, Steps int64
	// Skipped is the number of rows left out, by reason.
	Skipped [reasonCount]int64
	// Unknown is the number of rows by unknown metric name, of the first 64 names.
	Unknown map[string]int64
}

// SkippedTotal is the sum over all reasons.
func (s *Stats) SkippedTotal() int64 {
	var n int64
	for _, v := range s.Skipped {
		n += v
	}
	return n
}

// format decodes the rows of one kind of file and gathers them to steps.
type format interface {
	// decode reads a row into the format's scratch space, without regard to
	// the open step; it holds on to fields until add.
	decode(fields [][]byte) (at time.Duration, reason Reason, detail string)
	// add puts the decoded row into the open step.
	add() Reason
	// finish moves the open step to step and opens an empty one.
	finish(step *Step)
}

// Reader reads steps. It is not safe for concurrent use.
type Reader struct {
	lines   lineReader
	columns int
	fields  [][]byte
	format  format
	opts    Options
	stats   Stats
	step    Step

	// held is the time of a decoded row that belongs to the next step.
	held   time.Duration
	isHeld bool
	failed error
}

func newReader(r io.Reader, opts Options, bind func(header) (format, error)) (*Reader, error) {
	opts = opts.withDefaults()
	rd := &Reader{lines: newLineReader(r, opts.MaxLineBytes), opts: opts}
	rd.stats.Unknown = make(map[string]int64)
	for {
		line, tooLong, err := rd.lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil, ErrEmpty
		case err != nil:
			return nil, err
		case tooLong:
			return nil, fmt.Errorf("the header line is longer than %d bytes", opts.MaxLineBytes)
		case len(bytes.TrimSpace(line)) == 0:
			continue
		}
		fields, ok := splitFields(line, nil)
		if !ok {
			return nil, errors.New("the header line has a quote that is not closed or stands inside a field")
		}
		h := make(header, len(fields))
		for i, f := range fields {
			h[i] = strings.ToValidUTF8(string(bytes.TrimSpace(f)), "\uFFFD")
		}
		rd.columns = len(h)
		if rd.format, err = bind(h); err != nil {
			return nil, err
		}
		return rd, nil
	}
}

// Stats returns the counts so far; the map stays the Reader's.
func (r *Reader) Stats() *Stats {
	r.stats.Bytes = r.lines.bytes
	return &r.stats
}

// Next returns the next step, or io.EOF after the last. Other errors are the
// input's own; the rows read before one are returned first.
func (r *Reader) Next() (*Step, error) {
	if r.failed != nil {
		return nil, r.failed
	}
	r.step.Rows, r.step.Nodes = 0, r.step.Nodes[:0]
	open := r.isHeld
	if open {
		r.isHeld = false
		r.step.Time = r.held
		r.add()
	}
	for {
		at, err := r.row()
		if err != nil {
			r.failed = err
			if r.step.Rows > 0 {
				break
			}
			return nil, err
		}
		if !open || (r.step.Rows == 0 && at >= r.step.Time) {
			open = true
			r.step.Time = at
		}
		if at > r.step.Time+r.opts.StepWindow {
			r.held, r.isHeld = at, true
			break
		}
		switch {
		case at < r.step.Time-r.opts.StepWindow:
			r.skip(OutOfOrder, fmt.Sprintf("its time is %v before that of its predecessors; a recording must be sorted by time", r.step.Time-at))
		case r.step.Rows >= r.opts.MaxStepRows:
			r.skip(StepTooLarge, fmt.Sprintf("the step has more than %d rows", r.opts.MaxStepRows))
		default:
			r.add()
		}
	}
	r.format.finish(&r.step)
	r.stats.Steps++
	r.stats.Rows += int64(r.step.Rows)
	return &r.step, nil
}

func (r *Reader) add() {
	switch reason := r.format.add(); reason {
	case reasonNone:
		r.step.Rows++
	case Duplicate:
		r.stats.Skipped[Duplicate]++
	default:
		r.skip(reason, "")
	}
}

// row reads up to the next row that can be decoded.
func (r *Reader) row() (time.Duration, error) {
	for {
		line, tooLong, err := r.lines.next()
		if err != nil {
			return 0, err
		}
		if tooLong {
			r.skip(LineTooLong, fmt.Sprintf("the line is longer than %d bytes", r.opts.MaxLineBytes))
			continue
		}
		if len(line) == 0 {
			continue
		}
		var ok bool
		r.fields, ok = splitFields(line, r.fields[:0])
		if !ok {
			r.skip(BadQuote, "a quote is not closed on the line or stands inside a field")
			continue
		}
		if len(r.fields) != r.columns {
			r.skip(FieldCount, fmt.Sprintf("it has %d fields, the header %d", len(r.fields), r.columns))
			continue
		}
		at, reason, detail := r.format.decode(r.fields)
		switch reason {
		case reasonNone:
			return at, nil
		case UnknownMetric:
			r.unknown(detail)
		case Blank:
			r.stats.Skipped[Blank]++
		default:
			r.skip(reason, detail)
		}
	}
}

func (r *Reader) unknown(name string) {
	r.stats.Skipped[UnknownMetric]++
	if _, ok := r.stats.Unknown[name]; ok || len(r.stats.Unknown) < maxUnknownNames {
		r.stats.Unknown[name]++
	}
}

func (r *Reader) skip(reason Reason, detail string) {
	r.stats.Skipped[reason]++
	if r.opts.OnSkip != nil {
		r.opts.OnSkip(r.lines.line, reason, detail)
	}
}

// header is the names of the columns in file order.
type header []string

// column finds a column by its exact name.
func (h header) column(name string) (int, error) {
	found := -1
	for i, n := range h {
		if n != name {
			continue
		}
		if found >= 0 {
			return 0, fmt.Errorf("column %q occurs more than once", name)
		}
		found = i
	}
	if found < 0 {
		return 0, fmt.Errorf("no column %q; the file has: %s", name, h)
	}
	return found, nil
}

// String lists the columns, of a very wide file the first 64.
func (h header) String() string {
	const most = 64
	if len(h) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(h[:most], ", "), len(h)-most)
	}
	return strings.Join(h, ", ")
}

// quoteField shows a field in a log line, cut to a sensible length.
func quoteField(b []byte) string {
	const most = 64
	if len(b) > most {
		return fmt.Sprintf("%q...", b[:most])
	}
	return fmt.Sprintf("%q", b)
}
