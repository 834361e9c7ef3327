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
	"strconv"
	"strings"
	"time"
)

const (
	// maxLineBytes is the longest line. A longer one ends the replay: it is no
	// telemetry.
	maxLineBytes = 64 << 10
	// maxStepBytes bounds the lines of one step, and so the memory of a replay.
	maxStepBytes = 256 << 20
)

// reason says why a row was left out, as the telemetry attribute shows it.
type reason string

const (
	badNumber    reason = "bad_number"
	badQuote     reason = "bad_quote"
	badTime      reason = "bad_time"
	duplicate    reason = "duplicate"
	empty        reason = "empty"
	fieldCount   reason = "field_count"
	noNode       reason = "no_node"
	notFinite    reason = "not_finite"
	outOfOrder   reason = "out_of_order"
	outOfRange   reason = "value_range"
	otherUnit    reason = "wrong_unit"
	stepTooLarge reason = "step_too_large"
	subject      reason = "subject"
)

// loss is what is left out: a cell of a column, or a row, without one.
type loss struct {
	column string
	why    reason
	detail string
}

// reader reads a recording step by step. It has no clock: the caller decides
// when a step is due.
type reader struct {
	table   *table
	window  time.Duration
	maxStep int
	// skip is told of each row that is left out, and of each cell of one that is not.
	skip func(line int64, what loss)

	lines *bufio.Scanner
	line  int64
	text  strings.Reader // the line that fields reads
	csv   *csv.Reader
	held  *row // of the next step
	ended error
}

func newReader(in io.Reader, cfg *Config, skip func(line int64, what loss)) (*reader, error) {
	r := &reader{window: cfg.StepWindow, maxStep: maxStepBytes, skip: skip, lines: bufio.NewScanner(decoded(in))}
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
	if value := slices.IndexFunc(header, isNumber); err != nil && value >= 0 {
		err = fmt.Errorf("the first line is no header, it has the value %q: was it written with `noheader`? (%w)", header[value], err)
	}
	return r, err
}

// isNumber reports whether a field begins with a number, as `57.10 W` does.
func isNumber(field string) bool {
	number, _, _ := strings.Cut(field, " ")
	_, err := strconv.ParseFloat(number, 64)
	return err == nil && strings.ContainsAny(number, "0123456789")
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
	s := newStep()
	if r.held != nil {
		r.table.add(s, r.held)
		r.held = nil
	}
	for {
		next, err := r.row(ctx)
		switch {
		case err != nil && s.rows > 0:
			return s, nil
		case err != nil:
			return nil, err
		case s.rows == 0:
			r.table.add(s, &next)
		case next.at > s.at+r.window, next.at > s.at && r.repeats(s, &next):
			r.held = &next
			return s, nil
		case next.at < s.at-r.window:
			r.skip(r.line, loss{"", outOfOrder, fmt.Sprintf("its time is %v before that of its predecessors; a recording must be sorted by time", s.at-next.at)})
		case s.bytes >= r.maxStep:
			r.skip(r.line, loss{"", stepTooLarge, fmt.Sprintf("the rows of the step have more than %d bytes", r.maxStep)})
		default:
			r.table.add(s, &next)
		}
	}
}

// repeats reports whether a row has a series of the step again, which is then of the next:
// the recording is faster than the window.
func (r *reader) repeats(s *step, next *row) bool {
	_, names := r.table.series(next)
	return slices.ContainsFunc(names, func(name string) bool { _, again := s.series[name]; return again })
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
			r.skip(r.line, loss{"", fieldCount, fmt.Sprintf("it has %d fields, the header %d", len(fields), len(r.table.header))})
			continue
		case err != nil:
			r.skip(r.line, loss{"", badQuote, "a quote is not closed on the line or stands inside a field"})
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
