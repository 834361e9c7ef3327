// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
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
	case err == nil:
		s.readErr.Store(nil)
		return nil
	case ctx.Err() != nil:
		// The driver reports the interrupt, not its reason.
		return ctx.Err()
	case errors.Is(err, fleethistory.ErrTooMuch):
		return err
	}
	err = fmt.Errorf("%w: %w", fleethistory.ErrUnavailable, s.met(db, err))
	s.readErr.Store(&err)
	return err
}

// each calls scan for every row of the answer, until it fails.
func each(rows *sql.Rows, err error, scan func() error) error {
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = scan()
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// span is the time of the question in whole milliseconds, both included.
func span(q *fleethistory.Query) (from, to int64) {
	from = q.Start.UnixMilli()
	if q.Start.After(time.UnixMilli(from)) {
		from++
	}
	return from, q.End.UnixMilli()
}

// in adds a condition that takes the list as one argument, so that the text does not grow.
func in[T any](text *string, args *[]any, column string, list []T) {
	if len(list) > 0 {
		values, _ := json.Marshal(list)
		*text += " AND " + column + " IN (SELECT value FROM json_each(?))"
		*args = append(*args, string(values))
	}
}

// errEnough ends a question before its last row.
var errEnough = errors.New("enough")

// samples calls f for each selected sample, the newest first, or only for those of some rounds,
// until it returns false. It skips a record that is none.
func (s *Store) samples(ctx context.Context, db *sql.DB, q *fleethistory.Query, rounds []int64, f func(round int64, p *fleethistory.Sample) bool) error {
	from, to := span(q)
	text, args := "r.at BETWEEN ? AND ?", []any{from, to}
	in(&text, &args, "r.id", rounds)
	in(&text, &args, "p.host", q.Hosts)
	in(&text, &args, "p.cluster", q.Clusters)
	//nolint:gosec // the values are arguments
	rows, err := db.QueryContext(ctx, "SELECT r.id, r.at, r.columns, p.host, p.cluster, p.peer_group, p.record FROM rounds r CROSS JOIN records p ON p.round = r.id WHERE "+text+" ORDER BY r.at DESC", args...)
	d := decoder{query: q}
	err = each(rows, err, func() error {
		var p fleethistory.Sample
		var round int64
		var group string
		var columns, record sql.RawBytes
		if err := rows.Scan(&round, &p.At, &columns, &p.Node, &p.Cluster, &group, &record); err != nil {
			return err
		}
		err := d.layout(columns)
		if err == nil {
			err = d.record(record, &p, group, func() bool { return f(round, &p) })
		}
		if errors.Is(err, errRecord) {
			s.say("records of the history that are damaged were skipped")
			return nil
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Samples implements fleethistory.History.
func (s *Store) Samples(ctx context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	return s.query(ctx, func(ctx context.Context, db *sql.DB) error {
		return s.samples(ctx, db, q, nil, func(_ int64, p *fleethistory.Sample) bool { return f(p) })
	})
}

// Steps implements fleethistory.History. It looks at the last round of each step alone, so that
// its time depends on the steps and not on the rounds between them.
func (s *Store) Steps(ctx context.Context, q *fleethistory.StepQuery) (list []fleethistory.Sample, err error) {
	err = s.query(ctx, func(ctx context.Context, db *sql.DB) error {
		ends, err := endsOf(ctx, db, q)
		if err != nil || len(ends) == 0 {
			return err
		}
		return s.samples(ctx, db, &q.Query, slices.Collect(maps.Keys(ends)), func(round int64, p *fleethistory.Sample) bool {
			if q.PeerGroup != "" && !fleethistory.HasAttribute(p.Attributes, gpusemconv.AttrPeerGroup, q.PeerGroup) {
				return true
			}
			for _, end := range ends[round] {
				at := *p
				at.At = end
				list = append(list, at)
			}
			return len(list) <= q.Limit
		})
	})
	if err == nil && len(list) > q.Limit {
		err = fleethistory.ErrTooMuch
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b fleethistory.Sample) int { return cmp.Compare(a.At, b.At) })
	return list, nil
}

// endsOf returns the ends of the steps, each by the last round before it that is young enough.
func endsOf(ctx context.Context, db *sql.DB, q *fleethistory.StepQuery) (map[int64][]int64, error) {
	ends := map[int64][]int64{}
	from, end := span(&q.Query) // end is the last one that has no round yet
	rows, err := db.QueryContext(ctx, "SELECT id, at FROM rounds WHERE at BETWEEN ? AND ? ORDER BY at DESC", from, end)
	return ends, each(rows, err, func() error {
		var round, at int64
		if err := rows.Scan(&round, &at); err != nil {
			return err
		}
		for ; end >= at; end -= q.Step.Milliseconds() {
			if end-at < q.Back().Milliseconds() {
				ends[round] = append(ends[round], end)
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
