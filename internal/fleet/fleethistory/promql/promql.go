// SPDX-License-Identifier: Apache-2.0

// Package promql answers the questions about the past from a server that
// speaks PromQL and holds what the collector's Prometheus exporters wrote:
// Prometheus, Mimir, VictoriaMetrics.
package promql // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/promql"

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// Config of a source.
type Config struct {
	// Endpoint is the URL before /api/v1.
	Endpoint string
	// Client makes the requests; it brings TLS and authentication along.
	Client *http.Client
	// ClusterLabel, HostLabel and GPULabel are what the server calls them.
	ClusterLabel, HostLabel, GPULabel string
	// DefaultCluster is the cluster of series without that label.
	DefaultCluster string
	// QueryTimeout ends a question that takes too long.
	QueryTimeout time.Duration
	// MaxSamples is the most samples that are looked through for one answer.
	MaxSamples int
}

// Bounds of a question.
const (
	maxMetrics = 500
	// maxExpression is below VictoriaMetrics' -search.maxQueryLen, 16 KiB.
	maxExpression = 12_000
	// parts of MaxSamples are fetched one by one.
	parts = 10
)

// ours selects metrics where a question names none.
const ours = `__name__=~"(hw|gpu)_.+"`

// History asks a server. It writes nothing: the pipeline's exporters do. A metric
// store has no episodes.
type History struct {
	cfg Config
	api v1.API
	err atomic.Pointer[error]
}

var _ fleethistory.History = (*History)(nil)

// New returns a history.
func New(cfg Config) (*History, error) {
	transport := http.DefaultTransport
	if cfg.Client != nil && cfg.Client.Transport != nil {
		transport = cfg.Client.Transport
	}
	client, err := api.NewClient(api.Config{Address: cfg.Endpoint, RoundTripper: exact{transport}})
	if err != nil {
		return nil, err
	}
	return &History{cfg: cfg, api: v1.NewAPI(client)}, nil
}

// exact asks VictoriaMetrics for what was asked: it moves times to its cache's
// steps and hides the last 30 s otherwise. Others ignore the parameter.
// https://docs.victoriametrics.com/#prometheus-querying-api-enhancements
type exact struct{ next http.RoundTripper }

func (e exact) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Set("nocache", "1")
	r.URL.RawQuery = q.Encode()
	return e.next.RoundTrip(r)
}

// Status implements fleethistory.History; the error is that of the last question.
func (h *History) Status() fleethistory.Status {
	out := fleethistory.Status{Storage: "prometheus"}
	if err := h.err.Load(); err != nil {
		out.Err = *err
	}
	return out
}

// ask runs f within the time for a question and turns errors of the server into
// those of a history.
func (h *History) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.QueryTimeout)
	defer cancel()
	err := f(ctx)
	if err == nil {
		h.err.Store(nil)
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, fleethistory.ErrTooMuch) {
		return err
	}
	var e *v1.Error
	if errors.As(err, &e) {
		switch e.Type {
		case v1.ErrTimeout:
			return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		case v1.ErrExec: // such as too many samples
			return fmt.Errorf("%w: the server answered: %w", fleethistory.ErrTooMuch, err)
		}
	}
	err = fmt.Errorf("%w: `history::prometheus::http::endpoint` %s: %w", fleethistory.ErrUnavailable, h.cfg.Endpoint, err)
	h.err.Store(&err)
	return err
}
