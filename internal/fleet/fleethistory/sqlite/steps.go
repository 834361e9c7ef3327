// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// latest finds the last sample of each series of a list in a part of a slot, without a look
// at the others.
const latest = `SELECT p.series, p.value FROM json_each(?1) j CROSS JOIN samples p ON p.slot = ?2 AND p.series = j.value
	AND p.at = (SELECT max(at) FROM samples WHERE slot = ?2 AND series = j.value AND at BETWEEN ?3 AND ?4)`

// Steps implements fleethistory.History. Its time depends on how many steps and series
// there are, not on how many samples lie between them.
func (s *Store) Steps(ctx context.Context, q *fleethistory.StepQuery) (list []fleethistory.Sample, err error) {
	err = s.query(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		list, err = steps(ctx, tx, q)
		return err
	})
	return list, err
}

func steps(ctx context.Context, tx *sql.Tx, q *fleethistory.StepQuery) (list []fleethistory.Sample, err error) {
	named, ids, err := seriesOf(ctx, tx, q)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	// What is older than all that is kept costs no search.
	var oldest sql.NullInt64
	if err := tx.QueryRowContext(ctx, "SELECT min(slot) FROM samples").Scan(&oldest); err != nil || !oldest.Valid {
		return nil, err
	}
	start, step := q.Start.UnixMilli(), q.Step.Milliseconds()
	for end := q.Ends(max(start, oldest.Int64*slotLength)); end <= q.End.UnixMilli(); end += step {
		from := max(end-q.Back().Milliseconds()+1, start)
		wanted := slices.Clone(ids)
		for slot := slotOf(end); slot >= slotOf(from) && len(wanted) > 0; slot-- {
			text, err := json.Marshal(wanted)
			if err != nil {
				return nil, err
			}
			if err := each(ctx, tx, latest, []any{string(text), slot, from, end}, func(rows *sql.Rows) error {
				var id int64
				var value float64
				err := rows.Scan(&id, &value)
				p := named[id]
				p.At, p.Value = end, value
				list = append(list, p)
				wanted = slices.DeleteFunc(wanted, func(other int64) bool { return other == id })
				return err
			}); err != nil {
				return nil, err
			}
		}
		if len(list) > q.Limit {
			return nil, fleethistory.ErrTooMuch
		}
	}
	return list, nil
}

// seriesOf returns the series that a question selects, with their ids in order.
func seriesOf(ctx context.Context, tx *sql.Tx, q *fleethistory.StepQuery) (map[int64]fleethistory.Sample, []int64, error) {
	var c condition
	c.names(&q.Query)
	for _, pair := range q.Attributes {
		c.add("instr(',' || attributes || ',', ?) > 0", ","+pair+",")
	}
	// A series that ended before has no samples here.
	c.add("last_slot >= ?", slotOf(q.Start.UnixMilli()))
	named, ids := map[int64]fleethistory.Sample{}, []int64(nil)
	err := each(ctx, tx, "SELECT id, cluster, host, gpu, metric, attributes FROM series"+c.where()+" ORDER BY id LIMIT ?", append(c.args, maxStepSeries+1), func(rows *sql.Rows) error {
		var id int64
		var p fleethistory.Sample
		err := rows.Scan(&id, &p.Cluster, &p.Node, &p.GPU, &p.Metric, &p.Attributes)
		named[id], ids = p, append(ids, id)
		return err
	})
	if len(ids) > maxStepSeries {
		return nil, nil, fleethistory.ErrTooMuch
	}
	return named, ids, err
}

// maxStepSeries bounds the series of one question: a node's signals and ranks, or a
// group's figures, are some dozens.
const maxStepSeries = 1000
