// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

// Steps implements fleethistory.History. It goes from slot to slot, so that no more than a
// slot is sorted.
func (s *Store) Steps(ctx context.Context, q *fleethistory.StepQuery) (list []fleethistory.Sample, err error) {
	err = s.query(ctx, func(ctx context.Context, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		list, err = steps(ctx, tx, q)
		return err
	})
	return list, err
}

func steps(ctx context.Context, tx *sql.Tx, q *fleethistory.StepQuery) ([]fleethistory.Sample, error) {
	named, ids, err := seriesOf(ctx, tx, q)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return nil, err
	}
	var c condition
	c.add("slot = ?", 0)
	first, last := c.span(&q.Query)
	c.add("series IN (SELECT value FROM json_each(?))", string(text))
	step := max(q.Step.Milliseconds(), 1)
	// Of a group with max(at), SQLite takes the other columns from the row that has it:
	// https://sqlite.org/lang_select.html#bareagg
	latest := "SELECT series, max(at), value FROM samples" + c.where() + " GROUP BY series, (at + ? - 1) / ?"
	type place struct{ series, end int64 }
	at := map[place]int{}
	var list []fleethistory.Sample
	for slot := first - 1; ; {
		var next sql.NullInt64
		if err := tx.QueryRowContext(ctx, "SELECT min(slot) FROM samples WHERE slot > ? AND slot <= ?", slot, last).Scan(&next); err != nil {
			return nil, err
		}
		if !next.Valid {
			break
		}
		slot = next.Int64
		c.args[0] = slot
		err := each(ctx, tx, latest, append(slices.Clone(c.args), step, step), func(rows *sql.Rows) error {
			var id, when int64
			var value float64
			if err := rows.Scan(&id, &when, &value); err != nil {
				return err
			}
			in := place{id, q.Ends(when)}
			i, known := at[in]
			if !known {
				if i = len(list); i >= q.Limit {
					return fleethistory.ErrTooMuch
				}
				at[in] = i
				p := named[id]
				p.At = in.end
				list = append(list, p)
			}
			list[i].Value = value
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b fleethistory.Sample) int { return cmp.Compare(a.At, b.At) })
	return list, nil
}

// seriesOf returns the series that a question selects, with their ids in order.
func seriesOf(ctx context.Context, tx *sql.Tx, q *fleethistory.StepQuery) (map[int64]fleethistory.Sample, []int64, error) {
	var c condition
	c.names(&q.Query)
	for _, pair := range q.Attributes {
		c.add("instr(',' || attributes || ',', ?) > 0", ","+pair+",")
	}
	named, ids := map[int64]fleethistory.Sample{}, []int64(nil)
	err := each(ctx, tx, "SELECT id, cluster, host, gpu, metric, attributes FROM series"+c.where()+" ORDER BY id LIMIT ?", append(c.args, q.Limit+1), func(rows *sql.Rows) error {
		var id int64
		var p fleethistory.Sample
		err := rows.Scan(&id, &p.Cluster, &p.Node, &p.GPU, &p.Metric, &p.Attributes)
		named[id], ids = p, append(ids, id)
		return err
	})
	if len(ids) > q.Limit {
		return nil, nil, fleethistory.ErrTooMuch
	}
	return named, ids, err
}
