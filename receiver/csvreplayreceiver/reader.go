// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

const (
	// maxLineBytes is the longest line. A longer one ends the replay: it is no
	// telemetry.
	maxLineBytes = 64 << 10
	// maxStepBytes bounds the lines of one step, and so the memory of a replay.
	maxStepBytes = 256 << 20
)

// reason is why a row or cell was left out: a value of the telemetry's attribute.
type reason string

const (
	badNumber    reason = "bad_number"
	badQuote     reason = "bad_quote"
	badTime      reason = "bad_time"
	empty        reason = "empty"
	fieldCount   reason = "field_count"
	noNode       reason = "no_node"
	notFinite    reason = "not_finite"
	outOfOrder   reason = "out_of_order"
	outOfRange   reason = "value_range"
	otherUnit    reason = "wrong_unit"
	stepTooLarge reason = "step_too_large"
)

// loss is what is left out: a cell, or a row.
type loss struct {
	cell   bool
	why    reason
	detail string
}

// reader reads a recording step by step. It has no clock: the caller decides
// when a step is due.
type reader struct {
	table   *table
	window  time.Duration
	maxStep int
	// skip is called for each row that is left out, and for each cell of the others.
	skip func(line int64, what loss)

	lines *bufio.Scanner
	line  int64
	text  strings.Reader // the line that fields reads
	csv   *csv.Reader
	held  *row // of the next step
	ended error
}

func newReader(in io.Reader, cfg *Config, skip func(line int64, what loss)) (*reader, error) {
	// Windows' shells write UTF-16, with a byte order mark.
	utf8 := transform.NewReader(in, unicode.BOMOverride(encoding.Nop.NewDecoder()))
	r := &reader{window: cfg.StepWindow, maxStep: maxStepBytes, skip: skip, lines: bufio.NewScanner(utf8)}
	r.lines.Buffer(nil, maxLineBytes)
	r.csv = csv.NewReader(&r.text)
	text, err := r.next()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty: the first line must name the columns")
	}
	if err != nil {
		return nil, err
	}
	header, err := r.split(text)
	if err != nil {
		return nil, errors.New("the header line has a quote that is not closed or stands inside a field")
	}
	for i := range header {
		header[i] = strings.TrimSpace(header[i])
	}
	r.table, err = newTable(&cfg.Table, header)
	return r, err
}

// next returns the next line that is not empty. Its text is UTF-8.
func (r *reader) next() (string, error) {
	// A scanner goes on after an error, so the end is kept here.
	for r.ended == nil && r.lines.Scan() {
		r.line++
		// A shell that appends leaves a byte order mark, a crash zeros.
		if text := strings.TrimLeft(strings.ToValidUTF8(r.lines.Text(), "\uFFFD"), "\uFEFF\x00"); strings.TrimRight(text, "\r") != "" {
			return text, nil
		}
	}
	if err := r.lines.Err(); r.ended == nil && err != nil {
		r.ended = fmt.Errorf("line %d: %w", r.line+1, err)
	} else if r.ended == nil {
		r.ended = io.EOF
	}
	return "", r.ended
}

// split cuts a line into its fields. A quoted field ends on its own line, so a
// lost quote costs one line and not the rest of the file.
func (r *reader) split(line string) ([]string, error) {
	r.text.Reset(line)
	return r.csv.Read()
}

// step returns the next step, or io.EOF after the last. The rows before an
// error are returned first; the next call meets the error again.
func (r *reader) step(ctx context.Context) (*step, error) {
	s := new(step)
	if r.held != nil {
		s.add(*r.held)
		r.held = nil
	}
	for {
		next, err := r.row(ctx)
		switch {
		case err != nil && len(s.rows) > 0:
			return s, nil
		case err != nil:
			return nil, err
		case len(s.rows) == 0:
			s.add(next)
		case next.at > s.at+r.window, next.at > s.at && s.repeats(&next):
			r.held = &next
			return s, nil
		case next.at < s.at-r.window:
			r.skip(r.line, loss{false, outOfOrder, fmt.Sprintf("its time is %v before that of its predecessors; a recording must be sorted by time", s.at-next.at)})
		case s.bytes >= r.maxStep:
			r.skip(r.line, loss{false, stepTooLarge, fmt.Sprintf("the rows of the step have more than %d bytes", r.maxStep)})
		default:
			s.add(next)
		}
	}
}

// repeats reports whether a row has a series of the step again, which is then of the next:
// the recording is faster than the window.
func (s *step) repeats(next *row) bool {
	return slices.ContainsFunc(next.series, func(name string) bool { return name != "" && s.series[name] })
}

// row reads up to the next row that can be decoded.
func (r *reader) row(ctx context.Context) (row, error) {
	for {
		// A large file without one good row is a long read.
		if err := ctx.Err(); err != nil {
			return row{}, err
		}
		text, err := r.next()
		if err != nil {
			return row{}, err
		}
		fields, err := r.split(text)
		switch {
		case errors.Is(err, csv.ErrFieldCount):
			r.skip(r.line, loss{false, fieldCount, fmt.Sprintf("it has %d fields, the header %d", len(fields), len(r.table.header))})
			continue
		case err != nil:
			r.skip(r.line, loss{false, badQuote, "a quote is not closed on the line or stands inside a field"})
			continue
		}
		decoded, lost, ok := r.table.decode(fields)
		for _, what := range lost {
			r.skip(r.line, what)
		}
		if ok {
			return decoded, nil
		}
	}
}
