// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// maxCounted is how many samples are looked through for one answer, a second
// or two; with more the total is not known.
const maxCounted = 5_000_000

// maxGroups bounds an answer of aggregations, which has no pages.
const maxGroups = 10_000

// condition is the part after WHERE, with its arguments.
type condition struct {
	text []string
	args []any
}

func (c *condition) add(text string, args ...any) {
	c.text = append(c.text, text)
	c.args = append(c.args, args...)
}

// in takes the list as one argument, so that a statement's text does not grow.
func (c *condition) in(column string, list []string) {
	if len(list) > 0 {
		text, _ := json.Marshal(list)
		c.add(column+" IN (SELECT value FROM json_each(?))", string(text))
	}
}

func (c *condition) where() string {
	if len(c.text) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.text, " AND ")
}

// series adds what selects series, if anything does.
func (c *condition) series(q *fleethistory.Query, more ...string) {
	var s condition
	s.names(q)
	for _, text := range more {
		s.add(text)
	}
	if len(s.text) > 0 {
		c.add("series IN (SELECT id FROM series"+s.where()+")", s.args...)
	}
}

func (c *condition) names(q *fleethistory.Query) {
	c.in("cluster", q.Clusters)
	c.in("host", q.Hosts)
	c.in("gpu", q.GPUs)
	c.in("metric", q.Metrics)
}

func (c *condition) span(q *fleethistory.Query) (first, last int64) {
	from, to := q.Start.UnixMilli(), q.End.UnixMilli()
	if q.Start.After(time.UnixMilli(from)) {
		from++ // samples are whole milliseconds
	}
	c.add("at BETWEEN ? AND ?", from, to)
	return slotOf(from), slotOf(to)
}

// query runs f within the time for a question. Its transaction sees one state of the file, so
// that pages and total agree.
func (s *Store) query(ctx context.Context, f func(context.Context, *sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	var tx *sql.Tx
	db, err := s.file(ctx)
	if err == nil {
		tx, err = db.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	}
	if err == nil {
		err = f(ctx, tx)
		_ = tx.Rollback()
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
	err = fmt.Errorf("%w: %w", fleethistory.ErrUnavailable, s.met(err))
	s.readErr.Store(&err)
	return err
}

// Telemetry returns a page of samples, the newest first, and how many are
// selected, -1 when that is more than are counted. It goes from slot to slot,
// so that no more than a slot is sorted.
func (s *Store) Telemetry(ctx context.Context, q *fleethistory.Query) (page []fleethistory.Sample, total int, err error) {
	err = s.query(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		page, total, err = telemetry(ctx, tx, q)
		return err
	})
	return page, total, err
}

func telemetry(ctx context.Context, tx *sql.Tx, q *fleethistory.Query) (page []fleethistory.Sample, total int, err error) {
	var c condition
	c.add("slot = ?", 0)
	first, last := c.span(q)
	c.series(q)
	skip := q.Offset
	for slot := last + 1; ; {
		var next sql.NullInt64
		if err := tx.QueryRowContext(ctx, "SELECT max(slot) FROM samples WHERE slot < ? AND slot >= ?", slot, first).Scan(&next); err != nil {
			return nil, 0, err
		}
		if !next.Valid {
			return page, total, nil
		}
		slot = next.Int64
		c.args[0] = slot
		if total >= 0 {
			var n int
			limited := append(append([]any(nil), c.args...), maxCounted-total+1)
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM samples"+c.where()+" LIMIT ?)", limited...).Scan(&n); err != nil {
				return nil, 0, err
			}
			if skip >= n {
				skip -= n
				n, total = 0, total+n
			} else {
				total += n
			}
			if total > maxCounted {
				total = -1
				if skip > 0 && n == 0 {
					return nil, 0, fleethistory.ErrTooMuch
				}
			}
			if n == 0 {
				continue
			}
		}
		if len(page) < q.Limit {
			if page, err = slotPage(ctx, tx, &c, page, skip, q.Limit-len(page)); err != nil {
				return nil, 0, err
			}
			skip = 0
		}
		if total < 0 && len(page) >= q.Limit {
			return page, total, nil
		}
	}
}

func slotPage(ctx context.Context, tx *sql.Tx, c *condition, page []fleethistory.Sample, offset, limit int) ([]fleethistory.Sample, error) {
	args := append(append([]any(nil), c.args...), limit, offset)
	err := each(ctx, tx, `SELECT r.cluster, r.host, r.gpu, r.metric, r.attributes, p.at, p.value
		FROM (SELECT series, at, value FROM samples`+c.where()+` ORDER BY at DESC, series LIMIT ? OFFSET ?) p
		JOIN series r ON r.id = p.series ORDER BY p.at DESC, p.series`, args, func(rows *sql.Rows) error {
		var p fleethistory.Sample
		err := rows.Scan(&p.Cluster, &p.Node, &p.GPU, &p.Metric, &p.Attributes, &p.At, &p.Value)
		page = append(page, p)
		return err
	})
	return page, err
}

// each calls scan for every row of the answer, until it fails.
func each(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, args []any, scan func(*sql.Rows) error,
) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	for err == nil && rows.Next() {
		err = scan(rows)
	}
	return errors.Join(err, rows.Err(), rows.Close())
}

// perSeries is a query of what there is of each series and slot in a time. It
// reads the table in its order.
func perSeries(q *fleethistory.Query, columns string, more ...string) (text string, args []any) {
	var c condition
	first, last := c.span(q)
	c.add("slot BETWEEN ? AND ?", first, last)
	c.series(q, more...)
	return "(SELECT series, " + columns + " FROM samples" + c.where() + " GROUP BY slot, series) t JOIN series r ON r.id = t.series", c.args
}

// Recorded returns the nodes, or the GPUs, that have samples, by name.
func (s *Store) Recorded(ctx context.Context, q *fleethistory.Query, gpus bool) (page []fleethistory.Recorded, total int, err error) {
	gpu, named := "''", "host <> ''"
	if gpus {
		gpu, named = "r.gpu", "gpu <> ''"
	}
	from, args := perSeries(q, "min(at) f, max(at) l, count(*) n", named)
	err = s.query(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return each(ctx, tx, "SELECT r.host, r.cluster, "+gpu+", min(t.f), max(t.l), sum(t.n) FROM "+from+" GROUP BY 1, 2, 3 ORDER BY 1, 2, 3", args, func(rows *sql.Rows) error {
			if total++; total <= q.Offset || len(page) >= q.Limit {
				return nil
			}
			var r fleethistory.Recorded
			var first, last int64
			err := rows.Scan(&r.Host, &r.Cluster, &r.GPU, &first, &last, &r.Samples)
			r.First, r.Last = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
			page = append(page, r)
			return err
		})
	})
	return page, total, err
}

// grouping are the columns of a group, and what is not in any.
var grouping = map[fleethistory.GroupBy]struct {
	columns string
	more    []string
}{
	fleethistory.ByCluster: {"r.cluster, '', ''", nil},
	fleethistory.ByHost:    {"r.cluster, r.host, ''", []string{"host <> ''"}},
	fleethistory.ByGPU:     {"r.cluster, r.host, r.gpu", []string{"gpu <> ''"}},
	fleethistory.ByMetric:  {"'', '', ''", nil},
}

// Aggregations returns figures by group, metric and attributes.
func (s *Store) Aggregations(ctx context.Context, q *fleethistory.AggregationQuery) (list []fleethistory.Aggregation, err error) {
	g := grouping[q.GroupBy]
	more := g.more
	if len(q.Metrics) == 0 {
		more = append(more[:len(more):len(more)], "metric NOT LIKE '%.info'")
	}
	from, args := perSeries(&q.Query, "count(*) n, min(value) lo, max(value) hi, sum(value) s", more...)
	err = s.query(ctx, func(ctx context.Context, tx *sql.Tx) error {
		err := each(ctx, tx, "SELECT "+g.columns+", r.metric, r.attributes, sum(t.n), min(t.lo), max(t.hi), sum(t.s) FROM "+from+
			" GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT ?", append(args, maxGroups+1), func(rows *sql.Rows) error {
			var a fleethistory.Aggregation
			err := rows.Scan(&a.Cluster, &a.Host, &a.GPU, &a.Metric, &a.Attributes, &a.Count, &a.Min, &a.Max, &a.Sum)
			a.Mean = a.Sum / float64(a.Count)
			list = append(list, a)
			return err
		})
		if len(list) > maxGroups {
			list = nil
			return fleethistory.ErrTooMuch
		}
		return err
	})
	return list, err
}

// Episodes returns the episodes that were updated last, the newest first.
func (s *Store) Episodes(ctx context.Context, limit int) (list []fleethistory.Episode, err error) {
	err = s.query(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return each(ctx, tx, "SELECT id, updated, record FROM episodes ORDER BY updated DESC, id LIMIT ?", []any{limit}, func(rows *sql.Rows) error {
			var e fleethistory.Episode
			err := rows.Scan(&e.ID, &e.Updated, &e.Record)
			list = append(list, e)
			return err
		})
	})
	return list, err
}
