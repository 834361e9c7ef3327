// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// query runs f within the time for a question.
func (s *Store) query(ctx context.Context, f func(context.Context, *sql.DB) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	db, err := s.file(ctx)
	if err == nil {
		err = f(ctx, db.read)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err() // the driver reports the interrupt, not its reason
	case err != nil:
		err = fmt.Errorf("%w: %w", fleethistory.ErrUnavailable, met(db, err))
	}
	s.readErr.Store(&err)
	return err
}

// errEnough ends a question before its last row.
var errEnough = errors.New("enough")

// each calls scan for every row of the answer, until it fails.
func each(rows *sql.Rows, err error, scan func() error) error {
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = scan()
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// Samples implements fleethistory.History. It leaves out what is damaged, and takes note of that.
func (s *Store) Samples(ctx context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	return s.query(ctx, func(ctx context.Context, db *sql.DB) error {
		from, to := q.Span()
		text, args := "SELECT r.at, r.columns, c.rows FROM rounds r CROSS JOIN chunks c ON c.round = r.id WHERE r.at BETWEEN ? AND ?", []any{from, to}
		if q.Step > 0 {
			ends, err := endsOf(ctx, db, q)
			if err != nil {
				return err
			}
			text, args = text+" AND r.at IN (SELECT value FROM json_each(?))", append(args, array(slices.Collect(maps.Keys(ends))))
			all := f
			f = func(p *fleethistory.Sample) bool {
				for _, end := range ends[p.At] {
					at := *p
					if at.At = end; !all(&at) {
						return false
					}
				}
				return true
			}
		}
		if len(q.Hosts) > 0 {
			text, args = text+" AND EXISTS (SELECT 1 FROM json_each(?) WHERE value BETWEEN c.first AND c.last)", append(args, array(q.Hosts))
		}
		selected := newSelection(q)
		rows, err := db.QueryContext(ctx, text+" ORDER BY r.at DESC", args...)
		return each(rows, err, func() error {
			var at int64
			var columns, chunk sql.RawBytes
			if err := rows.Scan(&at, &columns, &chunk); err != nil {
				return err
			}
			more, err := selected.each(at, columns, chunk, f)
			if errors.Is(err, errChunk) {
				note := fmt.Sprintf("nodes of %s are left out: %v", time.UnixMilli(at).UTC().Format(time.RFC3339), err)
				s.note.CompareAndSwap(nil, &note)
			} else if !more {
				return errEnough
			}
			return nil
		})
	})
}

// array is a list as one argument, so that the text does not grow.
func array[T any](list []T) string {
	text, _ := json.Marshal(list)
	return string(text)
}

// endsOf returns the ends of the steps, each by the time of the last round before it, where that
// is young enough. Other rounds are not looked at, however many there are.
func endsOf(ctx context.Context, db *sql.DB, q *fleethistory.Query) (ends map[int64][]int64, err error) {
	ends = map[int64][]int64{}
	from, end := q.Span() // end is the last one that has no round yet
	rows, err := db.QueryContext(ctx, "SELECT at FROM rounds WHERE at BETWEEN ? AND ? ORDER BY at DESC", from, end)
	return ends, each(rows, err, func() error {
		var at int64
		if err := rows.Scan(&at); err != nil {
			return err
		}
		for ; end >= at; end -= q.Step.Milliseconds() {
			if end-at < q.Back().Milliseconds() {
				ends[at] = append(ends[at], end)
			}
		}
		return nil
	})
}

// Episodes returns the episodes of the file, those that were updated last first.
func (s *Store) Episodes(ctx context.Context) (list []*episode.Episode, err error) {
	err = s.query(ctx, func(ctx context.Context, db *sql.DB) error {
		rows, err := db.QueryContext(ctx, "SELECT record FROM episodes")
		return each(rows, err, func() error {
			var record sql.RawBytes
			if err := rows.Scan(&record); err != nil {
				return err
			}
			// Another version may have written what this one cannot read.
			if e := (&episode.Episode{}); json.Unmarshal(record, e) == nil {
				list = append(list, e)
			}
			return nil
		})
	})
	slices.SortFunc(list, func(a, b *episode.Episode) int { return b.Updated.Compare(a.Updated) })
	return list, err
}
