// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/promql"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/sqlite"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Storages of the history.
const (
	storageNone       = "none"
	storageSQLite     = "sqlite"
	storagePrometheus = "prometheus"
)

// maxQueueMiB is a TiB, more than any collector has.
const maxQueueMiB = 1 << 20

// HistoryConfig is the storage of the past.
type HistoryConfig struct {
	// Storage is sqlite, prometheus or none.
	Storage    string           `mapstructure:"storage"`
	SQLite     SQLiteConfig     `mapstructure:"sqlite"`
	Prometheus PrometheusConfig `mapstructure:"prometheus"`

	_ struct{}
}

// SQLiteConfig is of the file that the collector writes.
type SQLiteConfig struct {
	Path string `mapstructure:"path"`
	// Retention is the age at which samples and episodes go, MaxSizeMiB the size
	// at which the oldest samples go.
	Retention  time.Duration `mapstructure:"retention"`
	MaxSizeMiB int64         `mapstructure:"max_size_mib"`
	// MaxSeries bounds the series, those of a cluster by its share of them; samples
	// of further ones are dropped.
	MaxSeries int `mapstructure:"max_series"`
	// A sample waits FlushInterval for others, and a transaction has at most
	// BatchSize. While the file cannot be written QueueSize samples wait at most,
	// in QueueMiB of memory. 0 is a part of the memory, see memorybudget.
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	BatchSize     int           `mapstructure:"batch_size"`
	QueueSize     int           `mapstructure:"queue_size"`
	QueueMiB      int64         `mapstructure:"queue_mib"`
	QueryTimeout  time.Duration `mapstructure:"query_timeout"`

	_ struct{}
}

// PrometheusConfig is of a server that the pipeline's exporters write to.
type PrometheusConfig struct {
	HTTP confighttp.ClientConfig `mapstructure:"http"`
	// ClusterLabel, HostLabel and GPULabel are the server's names for them.
	ClusterLabel string `mapstructure:"cluster_label"`
	HostLabel    string `mapstructure:"host_label"`
	GPULabel     string `mapstructure:"gpu_label"`
	// DefaultCluster is the cluster of series without that label.
	DefaultCluster string `mapstructure:"default_cluster"`
	// MaxSamples is the most samples that are fetched for one answer.
	MaxSamples   int           `mapstructure:"max_samples"`
	QueryTimeout time.Duration `mapstructure:"query_timeout"`

	_ struct{}
}

func defaultHistory() HistoryConfig {
	return HistoryConfig{
		Storage: storageSQLite,
		SQLite: SQLiteConfig{
			Path: filepath.Join(stateDirectory(), "fleet_view.db"), Retention: 7 * 24 * time.Hour, MaxSizeMiB: 10 * 1024, MaxSeries: 2_000_000,
			FlushInterval: time.Second, BatchSize: 20_000, QueueSize: 500_000, QueryTimeout: 10 * time.Second,
		},
		Prometheus: PrometheusConfig{
			HTTP: confighttp.NewDefaultClientConfig(), ClusterLabel: "k8s_cluster_name", HostLabel: "host_name", GPULabel: "hw_id",
			DefaultCluster: "default", MaxSamples: 100_000, QueryTimeout: 10 * time.Second,
		},
	}
}

// stateDirectory is where systemd wants state (StateDirectory= in the unit,
// systemd.exec(5)), and what the same would be without systemd.
func stateDirectory() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	return "/var/lib/gpu-collector"
}

func (c *HistoryConfig) validate() error {
	switch c.Storage {
	case storageNone:
		return nil
	case storageSQLite:
		return c.SQLite.validate()
	case storagePrometheus:
		return c.Prometheus.validate()
	default:
		return fmt.Errorf("`history::storage` is %q, must be %s, %s or %s", c.Storage, storageSQLite, storagePrometheus, storageNone)
	}
}

func (c *SQLiteConfig) validate() error {
	return errors.Join(
		mistake.If(c.Path == "", "`history::sqlite::path` is empty, must be the path of a file"),
		mistake.If(c.FlushInterval < 10*time.Millisecond, "`history::sqlite::flush_interval` is %s, must be at least 10ms", c.FlushInterval),
		mistake.If(c.QueryTimeout < time.Millisecond, "`history::sqlite::query_timeout` is %s, must be at least 1ms", c.QueryTimeout),
		mistake.If(c.Retention < 0, "`history::sqlite::retention` is %s, must be at least 0s", c.Retention),
		mistake.If(c.MaxSizeMiB < 0, "`history::sqlite::max_size_mib` is %d, must be positive, or 0 for no bound", c.MaxSizeMiB),
		mistake.If(c.MaxSeries <= 0, "`history::sqlite::max_series` is %d, must be greater than 0", c.MaxSeries),
		mistake.If(c.BatchSize <= 0, "`history::sqlite::batch_size` is %d, must be greater than 0", c.BatchSize),
		mistake.If(c.QueueSize < c.BatchSize,
			"`history::sqlite::queue_size` is %d, must not be less than `history::sqlite::batch_size`, %d", c.QueueSize, c.BatchSize),
		mistake.If(c.QueueMiB < 0 || c.QueueMiB > maxQueueMiB,
			"`history::sqlite::queue_mib` is %d, must be from 1 to %d, or 0 for %d %% of the memory", c.QueueMiB, maxQueueMiB, historyPercent))
}

func (c *PrometheusConfig) validate() error {
	u, err := url.Parse(c.HTTP.Endpoint)
	isURL := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
	isLabel := model.LegacyValidation.IsValidLabelName
	const noLabel = "`history::prometheus::%s` is %q, must be a label of letters, digits and underscores"
	return errors.Join(
		mistake.If(!isURL, "`history::prometheus::http::endpoint` is %q, must be a URL such as http://prometheus:9090", c.HTTP.Endpoint),
		mistake.If(!isLabel(c.ClusterLabel), noLabel, "cluster_label", c.ClusterLabel),
		mistake.If(!isLabel(c.HostLabel), noLabel, "host_label", c.HostLabel),
		mistake.If(!isLabel(c.GPULabel), noLabel, "gpu_label", c.GPULabel),
		mistake.If(c.MaxSamples < 2000, "`history::prometheus::max_samples` is %d, must be at least 2000, two pages", c.MaxSamples),
		mistake.If(c.QueryTimeout <= 0, "`history::prometheus::query_timeout` is %s, must be greater than 0s", c.QueryTimeout))
}

// queueBytes is the memory in which samples wait.
func (c *SQLiteConfig) queueBytes() int64 {
	return cmp.Or(c.QueueMiB<<20, memorybudget.Percent(historyPercent))
}

// newHistory returns the history, and sets past where it writes. A Prometheus server is known
// only once the host has its extensions.
func (e *fleetViewExtension) newHistory() fleethistory.History {
	if e.cfg.History.Storage != storageSQLite {
		return fleethistory.None{}
	}
	c := &e.cfg.History.SQLite
	h := sqlite.NewHistory(sqlite.Config{
		Path: c.Path, Retention: c.Retention, MaxBytes: c.MaxSizeMiB << 20, MaxSeries: c.MaxSeries, ClusterShare: e.cfg.ClusterShare, QueryTimeout: c.QueryTimeout,
	}, fleethistory.BatchConfig{
		MaxSamples: c.BatchSize, MaxAge: c.FlushInterval, QueueSize: c.QueueSize, QueueBytes: c.queueBytes(),
	}, func(err error) {
		if err != nil {
			e.set.Logger.Error("The history cannot be written, which is tried again; the views go on.", zap.Error(err))
		} else {
			e.set.Logger.Info("The history is written again.")
		}
	})
	e.past = h
	e.state.KeepEpisodes(func(ep *episode.Episode) {
		record, err := json.Marshal(ep)
		if err != nil {
			e.set.Logger.Warn("An episode cannot be written.", zap.String("id", ep.ID), zap.Error(err))
			return
		}
		h.WriteEpisode(fleethistory.Episode{Cluster: ep.Cluster, ID: historyID(ep), Updated: ep.Updated.UnixMilli(), Record: record})
	})
	return h
}

// historyID is the episode's ID in the history, where clusters may share IDs. An older file has
// bare IDs: the views take the later of both records.
func historyID(ep *episode.Episode) string { return strconv.Quote(ep.Cluster) + " " + ep.ID }

// startHistory starts the writer and restores the episodes. A file that cannot be read or
// written does not stop the start: the API reports it.
func (e *fleetViewExtension) startHistory(ctx context.Context, host component.Host) error {
	if e.cfg.History.Storage == storagePrometheus {
		c := &e.cfg.History.Prometheus
		client, err := c.HTTP.ToClient(ctx, host.GetExtensions(), e.set.TelemetrySettings)
		if err != nil {
			return fmt.Errorf("`history::prometheus::http`: %w", err)
		}
		h, err := promql.New(promql.Config{
			Endpoint: c.HTTP.Endpoint, Client: client, ClusterLabel: c.ClusterLabel, HostLabel: c.HostLabel, GPULabel: c.GPULabel,
			DefaultCluster: c.DefaultCluster, QueryTimeout: c.QueryTimeout, MaxSamples: c.MaxSamples,
		})
		if err != nil {
			return fmt.Errorf("`history::prometheus::http`: %w", err)
		}
		e.history, e.client = h, client
	}
	if e.past == nil {
		return nil
	}
	list, err := e.history.Episodes(ctx, e.cfg.MaxEpisodes)
	if err != nil {
		e.set.Logger.Error("The history cannot be read; the episodes of before the start are not shown.", zap.Error(err))
	}
	episodes := make([]*episode.Episode, 0, len(list))
	for _, r := range list {
		ep := &episode.Episode{}
		if err := json.Unmarshal(r.Record, ep); err != nil {
			e.set.Logger.Warn("An episode in the history cannot be read.", zap.String("id", r.ID), zap.Error(err))
			continue
		}
		episodes = append(episodes, ep)
	}
	e.state.RestoreEpisodes(episodes)
	e.past.Start()
	return nil
}

func (e *fleetViewExtension) stopHistory(ctx context.Context) error {
	if e.client != nil {
		e.client.CloseIdleConnections()
	}
	if e.past == nil {
		return nil
	}
	return e.past.Shutdown(ctx)
}
