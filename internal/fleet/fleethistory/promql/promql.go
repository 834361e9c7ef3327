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

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 20

// History asks a server, which the pipeline's exporters write to. It has no episodes.
type History struct {
	cfg Config
	api v1.API
	err atomic.Pointer[error] // of the last question
}

var _ fleethistory.History = (*History)(nil)

// New returns a history.
func New(cfg Config) (*History, error) {
	client, err := api.NewClient(api.Config{Address: cfg.Endpoint, RoundTripper: exact{cfg.Client.Transport}})
	if err != nil {
		return nil, err
	}
	return &History{cfg: cfg, api: v1.NewAPI(client)}, nil
}

// exact bounds an answer. It asks VictoriaMetrics for what was asked: that moves times to its
// cache's steps and hides the last 30 s otherwise. Others ignore the parameter.
// https://docs.victoriametrics.com/#prometheus-querying-api-enhancements
type exact struct{ next http.RoundTripper }

func (e exact) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Set("nocache", "1")
	r.URL.RawQuery = q.Encode()
	resp, err := e.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// Status implements fleethistory.History; the error is that of the last question.
func (h *History) Status() fleethistory.Status {
	out := fleethistory.Status{Storage: "prometheus"}
	if err := h.err.Load(); err != nil {
		out.Err = *err
	}
	return out
}

// ask runs f within the time for a question, and makes errors of the server those of a history.
func (h *History) ask(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.QueryTimeout)
	defer cancel()
	err := f(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, fleethistory.ErrTooMuch):
		return err
	case isTooMuch(err):
		return fmt.Errorf("%w: the server said: %w", fleethistory.ErrTooMuch, err)
	case err != nil:
		err = fmt.Errorf("%w: `history::prometheus::http::endpoint` %s: %w", fleethistory.ErrUnavailable, h.cfg.Endpoint, err)
	}
	h.err.Store(&err)
	return err
}

// isTooMuch reports whether an answer was too long, or the server refused to run a query, which is
// well-formed: for its limits. VictoriaMetrics has the status as the type of its errors.
func isTooMuch(err error) bool {
	var long *http.MaxBytesError
	var e *v1.Error
	return errors.As(err, &long) || errors.As(err, &e) && (e.Type == v1.ErrExec || e.Type == "422")
}
