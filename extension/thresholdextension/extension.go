// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"golang.org/x/time/rate"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

var _ interface {
	extension.Extension
	extensioncapabilities.PipelineWatcher
	extensionmiddleware.HTTPServer
	extensionmiddleware.GRPCServer
	extensionmiddleware.HTTPClient
	extensionmiddleware.GRPCClient
	threshold.Publisher
	threshold.Source
	threshold.StandingSource
	threshold.Server
	resync.Source
} = (*thresholdExtension)(nil)

type thresholdExtension struct {
	cfg       *Config
	set       component.TelemetrySettings
	telemetry *metadata.TelemetryBuilder
	now       func() time.Time

	// Server side: what the gateway computed, and the life it computed it in.
	published threshold.Store
	epoch     atomic.Pointer[string]

	// Client side: the answers, and the claim of the pushes.
	inbox     threshold.Inbox
	claim     atomic.Pointer[pushheaders.Claim]
	rotation  atomic.Uint32
	reachable atomic.Bool
	// answeredAt is the Unix time of the last answer with an epoch.
	answeredAt atomic.Int64
	last       atomic.Pointer[threshold.Standing]
	warned     rate.Sometimes
	unreached  atomic.Bool // and logged
	ready      chan struct{}

	// A middle tier is both: it asks above for what was asked of it.
	isClient, isServer atomic.Bool
	asks               pushheaders.Asks

	// Client side: what the next hop lost, and its subscribers.
	epochs resync.Epochs
	resync.Subscribers

	server *serverguard.Server
}

func newExtension(set extension.Settings, cfg *Config) (*thresholdExtension, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	e := &thresholdExtension{
		cfg: cfg, set: set.TelemetrySettings, telemetry: tb, now: time.Now, ready: make(chan struct{}),
		warned: rate.Sometimes{Interval: time.Minute},
	}
	e.renewEpoch()
	e.SetClaim(pushheaders.Claim{Cluster: cfg.Cluster})
	return e, nil
}

// Ready implements extensioncapabilities.PipelineWatcher: from now on pushes go out. One
// that goes to this very process would be refused before.
func (e *thresholdExtension) Ready() error {
	close(e.ready)
	return nil
}

// NotReady implements extensioncapabilities.PipelineWatcher.
func (*thresholdExtension) NotReady() error { return nil }

// Start serves the API when it has a port of its own.
func (e *thresholdExtension) Start(ctx context.Context, host component.Host) (err error) {
	if api := e.cfg.API.Get(); api != nil {
		e.server, err = serverguard.StartReaders(ctx, host, e.set, "straggler_threshold", "api", api,
			e.cfg.AllowedHosts, e.apiHandler(http.NotFoundHandler()))
	}
	return err
}

// Shutdown ends the API server.
func (e *thresholdExtension) Shutdown(ctx context.Context) error {
	err := e.server.Shutdown(ctx)
	e.telemetry.Shutdown()
	return err
}

// Publish implements threshold.Publisher.
func (e *thresholdExtension) Publish(snap *threshold.Snapshot) { e.published.Publish(snap) }

// SetClaim implements threshold.Source. The configured cluster stands in for
// a claim without one, and a node that no header can carry has no name.
func (e *thresholdExtension) SetClaim(c pushheaders.Claim) {
	c.Cluster = cmp.Or(c.Cluster, e.cfg.Cluster)
	if !pushheaders.ValidName(c.Node) {
		c.Node = ""
	}
	e.claim.Store(&c)
}

// Received implements threshold.Source. The empty group is the whole cluster; it never
// stands in for a group without a quorum, whose peers are others.
func (e *thresholdExtension) Received(cluster, group string) (threshold.Received, bool) {
	return e.inbox.Get(cluster, group)
}

// renewEpoch requests from the tiers below what they pushed so far. Two lives never
// share an epoch.
func (e *thresholdExtension) renewEpoch() {
	epoch := rand.Text()
	e.epoch.Store(&epoch)
}

// Standing implements threshold.StandingSource.
func (e *thresholdExtension) Standing() *threshold.Standing { return e.last.Load() }

// Reachable implements threshold.Source.
func (e *thresholdExtension) Reachable() bool { return e.reachable.Load() }
