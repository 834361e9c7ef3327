// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/promql"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/sqlite"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

// Storages of the history.
const (
	storageNone       = "none"
	storageSQLite     = "sqlite"
	storagePrometheus = "prometheus"
)

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
	// Interval is the time between two rounds of samples.
	Interval time.Duration `mapstructure:"interval"`
	// Retention is the time of which samples are kept, MaxSizeMiB the size of the file
	// at which the oldest samples go.
	Retention  time.Duration `mapstructure:"retention"`
	MaxSizeMiB int64         `mapstructure:"max_size_mib"`
	// QueryTimeout ends a question that takes longer: it gets 503.
	QueryTimeout time.Duration `mapstructure:"query_timeout"`

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
	// MaxSamples is the most samples that are looked through for one answer.
	MaxSamples int `mapstructure:"max_samples"`
	// QueryTimeout ends a question that takes longer: it gets 503.
	QueryTimeout time.Duration `mapstructure:"query_timeout"`

	_ struct{}
}

func defaultHistory() HistoryConfig {
	return HistoryConfig{
		Storage: storageSQLite,
		SQLite: SQLiteConfig{
			Path: filepath.Join(stateDirectory(), "fleet_view.db"), Interval: 30 * time.Second, Retention: 7 * 24 * time.Hour, MaxSizeMiB: 10 * 1024,
			QueryTimeout: 10 * time.Second,
		},
		Prometheus: PrometheusConfig{
			HTTP: confighttp.NewDefaultClientConfig(), ClusterLabel: "k8s_cluster_name", HostLabel: "host_name", GPULabel: "hw_id",
			DefaultCluster: "default", MaxSamples: 1_000_000, QueryTimeout: 10 * time.Second,
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
		mistake.If(c.Interval < time.Second || c.Interval > maxInterval, "`history::sqlite::interval` is %s, must be from 1s to %s", c.Interval, maxInterval),
		mistake.If(c.QueryTimeout < time.Millisecond, "`history::sqlite::query_timeout` is %s, must be at least 1ms", c.QueryTimeout),
		mistake.If(c.Retention < 0, "`history::sqlite::retention` is %s, must be at least 0s", c.Retention),
		mistake.If(c.MaxSizeMiB < 0, "`history::sqlite::max_size_mib` is %d, must be positive, or 0 for no bound", c.MaxSizeMiB))
}

// maxInterval is the age up to which a plot shows a value.
const maxInterval = 5 * time.Minute

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

// past is a history that is written here.
type past struct {
	*sqlite.Store
	writer *fleethistory.Writer
}

// Status implements fleethistory.History.
func (p *past) Status() fleethistory.Status {
	out := p.Store.Status()
	out.Dropped = p.writer.Dropped()
	if err := p.writer.Err(); err != nil {
		out.Err = err
	}
	return out
}

// newHistory sets the history. A Prometheus server is known only once the host has its
// extensions.
func (e *fleetViewExtension) newHistory() {
	e.history = fleethistory.None{}
	if e.cfg.History.Storage != storageSQLite {
		return
	}
	c := &e.cfg.History.SQLite
	// Rounded up: a part of an interval is a round as well.
	rounds := (c.Retention + c.Interval - 1) / c.Interval
	store := sqlite.New(sqlite.Config{Path: c.Path, MaxRounds: int64(rounds), MaxBytes: c.MaxSizeMiB << 20, QueryTimeout: c.QueryTimeout})
	e.past = &past{store, fleethistory.NewWriter(store, e.state, c.Interval, func(err error) {
		if err != nil {
			e.set.Logger.Error("The history cannot be written, which is tried again; the views go on.", zap.Error(err))
		} else {
			e.set.Logger.Info("The history is written again.")
		}
	})}
	e.history = e.past
}

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
	episodes, err := e.past.Episodes(ctx)
	if err != nil {
		e.set.Logger.Error("The history cannot be read; the episodes of before the start are not shown.", zap.Error(err))
	}
	if note := e.past.Store.Status().Note; note != "" {
		e.set.Logger.Warn("The history begins anew.", zap.String("why", note))
	}
	e.state.RestoreEpisodes(episodes)
	e.past.writer.Start(err != nil)
	return nil
}

func (e *fleetViewExtension) stopHistory(ctx context.Context) error {
	if e.client != nil {
		e.client.CloseIdleConnections()
	}
	if e.past == nil {
		return nil
	}
	return errors.Join(e.past.writer.Shutdown(ctx), e.past.Close())
}
