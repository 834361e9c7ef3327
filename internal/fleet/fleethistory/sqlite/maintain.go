// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// A piece of maintenance is small: ingest waits behind it.
const (
	maintainRows  = 20_000
	maintainPages = 2_000

	minCacheKiB, maxCacheKiB = 4 << 10, 64 << 10
)

// Maintain implements fleethistory.Storage: it drops samples older than Retention
// or over MaxBytes, drops empty series, and gives pages back to the file system.
func (s *Store) Maintain(ctx context.Context) (more bool, err error) {
	if err := s.check(ctx); err != nil {
		return false, s.met(err)
	}
	f, err := s.file(ctx)
	if err != nil {
		return false, err
	}
	more, err = f.w.maintain(ctx, &s.cfg)
	return more, s.met(err)
}

func (w *writer) maintain(ctx context.Context, cfg *Config) (more bool, err error) {
	var pages, free, size int64
	for _, p := range []struct {
		name string
		into *int64
	}{{"page_count", &pages}, {"freelist_count", &free}, {"page_size", &size}} {
		if err := w.conn.QueryRowContext(ctx, "PRAGMA "+p.name).Scan(p.into); err != nil {
			return false, err
		}
	}
	if _, err := w.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA cache_size(-%d)", cacheKiB(len(w.known)))); err != nil {
		return false, err
	}
	oldest, err := w.lookOldest(ctx)
	if err != nil {
		return false, err
	}
	before := int64(math.MinInt64)
	if cfg.Retention > 0 {
		before = cfg.Now().Add(-cfg.Retention).UnixMilli()
	}
	switch tooOld, tooLarge := (oldest.Int64+1)*slotLength <= before, cfg.MaxBytes > 0 && (pages-free)*size > cfg.MaxBytes; {
	case oldest.Valid && tooOld:
		more, err = true, w.drop(ctx, oldest.Int64)
	case oldest.Valid && tooLarge:
		more, err = true, w.dropLargest(ctx, oldest.Int64)
	case oldest.Valid:
		more, err = w.dropSeries(ctx, oldest.Int64)
	}
	if err == nil {
		err = w.dropEpisodes(ctx, before)
	}
	if err != nil {
		return false, err
	}
	if free > 0 && !more {
		// The pragma goes on for as long as it is stepped.
		if err := each(ctx, w.conn, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", maintainPages), nil, func(*sql.Rows) error { return nil }); err != nil {
			return false, err
		}
		more = free > maintainPages
	}
	return more, nil
}

// cacheKiB is SQLite's cache for so many series. A page of samples that leaves the
// cache is read anew from the file system's, for the next sample of its series. 64 MiB
// are enough for the 433,000 series of 1,000 nodes, and fewer series have the same part.
func cacheKiB(series int) int {
	const bytesPerSeries = maxCacheKiB << 10 / 433_000
	return min(max(series*bytesPerSeries>>10, minCacheKiB), maxCacheKiB)
}

// drop deletes the first rows of a slot, those of a cluster where one is named.
func (w *writer) drop(ctx context.Context, slot int64, cluster ...any) error {
	of, usage := " FROM samples WHERE slot = ?", "slot <= ?"
	if len(cluster) > 0 {
		of, usage = of+" AND series IN (SELECT id FROM series WHERE cluster = ?)", "slot = ? AND cluster = ?"
	}
	args := append([]any{slot}, cluster...)
	var series, at int64
	err := w.conn.QueryRowContext(ctx, "SELECT series, at"+of+" ORDER BY series, at LIMIT 1 OFFSET ?", slices.Concat(args, []any{maintainRows})...).Scan(&series, &at)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if _, err = w.conn.ExecContext(ctx, "DELETE"+of, args...); err == nil {
			_, err = w.conn.ExecContext(ctx, "DELETE FROM usage WHERE "+usage, args...)
		}
	case err == nil:
		_, err = w.conn.ExecContext(ctx, "DELETE"+of+" AND (series, at) < (?, ?)", slices.Concat(args, []any{series, at})...)
		if err == nil && len(cluster) > 0 {
			_, err = w.conn.ExecContext(ctx, "UPDATE usage SET rows = max(rows - ?, 1) WHERE "+usage, slices.Concat([]any{maintainRows}, args)...)
		}
	}
	return err
}

// dropLargest deletes the first rows of the oldest slot of the cluster that has most of
// the file, so that no cluster's flood costs another its past.
func (w *writer) dropLargest(ctx context.Context, oldest int64) error {
	var first sql.NullInt64
	if err := w.conn.QueryRowContext(ctx, "SELECT min(slot) FROM usage").Scan(&first); err != nil {
		return err
	}
	if !first.Valid || oldest < first.Int64 {
		return w.drop(ctx, oldest)
	}
	var cluster string
	var slot int64
	if err := w.conn.QueryRowContext(ctx, "SELECT cluster, min(slot) FROM usage GROUP BY cluster ORDER BY sum(rows) DESC, cluster LIMIT 1").Scan(&cluster, &slot); err != nil {
		return err
	}
	return w.drop(ctx, slot, cluster)
}

// maxEpisodes is how many episodes are kept, a quarter of a gigabyte of records.
const maxEpisodes = 100_000

// dropEpisodes deletes those of before a time. Of too many it deletes the oldest of the
// cluster that has most.
func (w *writer) dropEpisodes(ctx context.Context, before int64) error {
	if _, err := w.conn.ExecContext(ctx, "DELETE FROM episodes WHERE id IN (SELECT id FROM episodes WHERE updated < ? ORDER BY updated LIMIT 1000)", before); err != nil {
		return err
	}
	all, most, of := 0, 0, ""
	err := each(ctx, w.conn, "SELECT cluster, count(*) FROM episodes GROUP BY cluster", nil, func(rows *sql.Rows) error {
		var cluster string
		var n int
		err := rows.Scan(&cluster, &n)
		if all += n; n > most {
			most, of = n, cluster
		}
		return err
	})
	if err != nil || all <= maxEpisodes {
		return err
	}
	_, err = w.conn.ExecContext(ctx, "DELETE FROM episodes WHERE id IN (SELECT id FROM episodes WHERE cluster = ? ORDER BY updated LIMIT ?)", of, min(all-maxEpisodes, 1000))
	return err
}

// dropSeries deletes series whose samples are all gone, and reports whether there were some.
func (w *writer) dropSeries(ctx context.Context, oldest int64) (bool, error) {
	gone, clusters, bytes := map[int64]bool{}, map[string]int{}, map[string]int{}
	err := each(ctx, w.conn, "DELETE FROM series WHERE id IN (SELECT id FROM series WHERE last_slot < ? LIMIT ?) RETURNING id, cluster, host, gpu, metric, attributes", []any{oldest, maintainRows}, func(rows *sql.Rows) error {
		var id int64
		var p fleethistory.Sample
		err := rows.Scan(&id, &p.Cluster, &p.Node, &p.GPU, &p.Metric, &p.Attributes)
		gone[id] = true
		clusters[p.Cluster]++
		bytes[p.Cluster] += nameSize(&p)
		return err
	})
	if err != nil || len(gone) == 0 {
		return false, err
	}
	for cluster, n := range clusters {
		w.slots.Give(cluster, n)
		w.names.Give(cluster, bytes[cluster])
	}
	maps.DeleteFunc(w.known, func(_ seriesKey, r seriesRow) bool { return gone[r.id] })
	return true, nil
}
