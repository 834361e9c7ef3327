// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// reason is why a row or cell was left out: a value of the telemetry's attribute.
type reason string

const (
	badRow     reason = "bad_row"
	badTime    reason = "bad_time"
	badValue   reason = "bad_value"
	noNode     reason = "no_node"
	noValue    reason = "no_value"
	outOfOrder reason = "out_of_order"
)

// reader reads a recording step by step. It has no clock: the caller decides
// when a step is due.
type reader struct {
	table  *table
	window time.Duration
	// skip is called for each row and cell that is left out.
	skip  func(line int, why reason, err error)
	csv   *csv.Reader
	limit *rowLimit
	held  *row // of the next step
}

const (
	maxRowBytes   = 1 << 20 // an unclosed quote would take the rest of the file
	maxStepPoints = 1 << 17 // what has one time all over would be one step
)

// rowLimit ends the input inside of a row that is too long.
type rowLimit struct {
	io.Reader
	left int // of the row
	over bool
}

func (l *rowLimit) Read(p []byte) (int, error) {
	if l.over = l.over || l.left <= 0; l.over {
		return 0, fmt.Errorf("a row is longer than %d bytes: is a quote not closed?", maxRowBytes)
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// row is a row that has a time and a node.
type row struct {
	at     time.Time
	fields []string
}

func newReader(in io.Reader, cfg *Config, version string, began time.Time, skip func(int, reason, error)) (*reader, error) {
	// Windows' shells write UTF-16, with a byte order mark. What is no UTF-8 is replaced.
	utf8 := &rowLimit{Reader: transform.NewReader(in, unicode.BOMOverride(unicode.UTF8.NewDecoder())), left: maxRowBytes}
	r := &reader{window: cfg.StepWindow, skip: skip, csv: csv.NewReader(utf8), limit: utf8}
	r.csv.TrimLeadingSpace = true
	header, err := r.csv.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty: the first line must name the columns")
	}
	if err != nil {
		return nil, err
	}
	for i := range header {
		header[i] = strings.TrimSpace(header[i])
	}
	r.table, err = newTable(&cfg.Table, header, version, began)
	return r, err
}

// step returns the next step, or io.EOF after the last. The rows before an
// error are returned first; the next call meets the error again.
func (r *reader) step(ctx context.Context) (*step, error) {
	var s *step
	for {
		next, err := r.row(ctx)
		switch {
		case err != nil && s != nil && len(s.points) > 0:
			return s, nil
		case err != nil:
			return nil, err
		case s != nil && next.at.Before(s.at.Add(-r.window)):
			r.left(outOfOrder, fmt.Errorf("its time is %v before that of its predecessors; a recording must be sorted by time", s.at.Sub(next.at)))
			continue
		case s != nil && len(s.points) > 0 && (next.at.After(s.at.Add(r.window)) || len(s.points) >= maxStepPoints):
			r.held = next
			return s, nil
		case s == nil || next.at.After(s.at.Add(r.window)):
			s = newStep(next.at)
		}
		if !r.table.add(s, next.fields, func(err error) { r.left(badValue, err) }) {
			r.left(noValue, errors.New("it has no value for any metric"))
		}
	}
}

// row reads up to the next row that has a time and a node.
func (r *reader) row(ctx context.Context) (*row, error) {
	if held := r.held; held != nil {
		r.held = nil
		return held, nil
	}
	// A large file without one good row is a long read.
	for ctx.Err() == nil {
		r.limit.left = maxRowBytes
		fields, err := r.csv.Read()
		if malformed := (*csv.ParseError)(nil); errors.As(err, &malformed) {
			r.skip(malformed.Line, badRow, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		at, err := r.table.time.parse(cell(fields, r.table.at))
		switch {
		case err != nil:
			r.left(badTime, fmt.Errorf("column %q: %w", r.table.time.Column, err))
		case r.table.host.render(fields) == "":
			r.left(noNode, errors.New("host.name comes out empty"))
		default:
			return &row{at, fields}, nil
		}
	}
	return nil, ctx.Err()
}

// left says what is left out of the last row that was read.
func (r *reader) left(why reason, err error) {
	line, _ := r.csv.FieldPos(0)
	r.skip(line, why, err)
}
