// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/balancer/ringhash"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/resync"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// maxReconnectDelay bounds the pause between two attempts to connect: a gateway
// that is back has to get the nodes' next pushes. gRPC doubles the
// pause up to two minutes by default, and configgrpc has no key for it.
const maxReconnectDelay = 5 * time.Second

// forgottenAfter is the time without an answer after which the next hop may take series for ended: a table
// holds a quiet series back after half of its `ttl`, 5 minutes by default.
const forgottenAfter = 4 * time.Minute

// hashHeaders are the request headers that pushes are hashed by, by the values of
// `consistent_hash`. Without one the exporter's own balancer decides.
var hashHeaders = map[string]string{"none": "", "node": gpusemconv.HeaderNode, "cluster": gpusemconv.HeaderCluster}

// GetHTTPRoundTripper implements extensionmiddleware.HTTPClient.
func (e *thresholdExtension) GetHTTPRoundTripper(context.Context) (extensionmiddleware.WrapHTTPRoundTripperFunc, error) {
	e.isClient.Store(true)
	return func(_ context.Context, base http.RoundTripper) (http.RoundTripper, error) {
		return &roundTripper{base: base, ext: e}, nil
	}, nil
}

type roundTripper struct {
	base http.RoundTripper
	ext  *thresholdExtension
}

// RoundTrip adds the claim and reads the answer's headers; it never touches the body. Each
// request of an exporter is a push: its `metrics_endpoint` may have any path.
func (t *roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	claim := t.ext.ask()
	r = r.Clone(r.Context())
	for _, h := range claim.Headers() {
		r.Header.Set(h.Name, h.Value)
	}
	resp, err := t.base.RoundTrip(r)
	var header http.Header
	if err == nil {
		header = resp.Header
	}
	t.ext.readResponse(r.Context(), threshold.HTTP, r.URL.Host, claim, header.Values, err == nil && answered(resp))
	return resp, err
}

// answered distinguishes a gateway's refusal from the answer of a proxy before an absent
// gateway. The gateway sends its epoch, or when to come back (RFC 9110, 10.2.3); one of an
// older version or of Ingero's sends at most its threshold.
func answered(resp *http.Response) bool {
	for _, name := range []string{"Retry-After", gpusemconv.HeaderEpoch, gpusemconv.HeaderThreshold, gpusemconv.HeaderParams} {
		if resp.Header.Get(name) != "" {
			return true
		}
	}
	return resp.StatusCode < http.StatusInternalServerError
}

// GetGRPCClientOptions implements extensionmiddleware.GRPCClient. It may only add a
// chained interceptor: WithUnaryInterceptor would silently replace the interceptor
// that sets the exporter's configured headers.
func (e *thresholdExtension) GetGRPCClientOptions(context.Context) ([]grpc.DialOption, error) {
	e.isClient.Store(true)
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxReconnectDelay
	opts := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: maxReconnectDelay}),
		grpc.WithChainUnaryInterceptor(e.intercept),
	}
	if header := hashHeaders[e.cfg.ConsistentHash]; header != "" {
		// gRPC's ring_hash (gRFC A42, A76) comes after the exporter's own balancer_name, so that it
		// holds. The ring has as many points as gRPC lets it have, so that shares differ least.
		opts = append(opts, grpc.WithDefaultServiceConfig(fmt.Sprintf(
			`{"loadBalancingConfig":[{%q:{"requestHashHeader":%q,"minRingSize":4096}}]}`, ringhash.Name, header)))
	}
	return opts, nil
}

func (e *thresholdExtension) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if method != metricsMethod {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	claim := e.ask()
	var pairs []string
	for _, h := range claim.Headers() {
		pairs = append(pairs, h.Name, h.Value)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	var md metadata.MD
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Header(&md))...)
	code := status.Code(err)
	unanswered := len(md) == 0 && len(status.Convert(err).Details()) == 0 &&
		(code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled)
	e.readResponse(ctx, threshold.GRPC, cc.Target(), claim, md.Get, !unanswered)
	return err
}

// ask returns the claim of this push: for the nodes of this agent, or else for the
// clients that asked here. Groups beyond one request's bound take turns.
func (e *thresholdExtension) ask() *pushheaders.Claim {
	claim := *e.claim.Load()
	if claim.Node == "" && len(claim.Groups) == 0 {
		if below := e.asks.Next(e.now()); below.Cluster != "" {
			claim = below
		}
		claim.Tier = e.isServer.Load()
	}
	if windows := (len(claim.Groups) + pushheaders.MaxGroups - 1) / pushheaders.MaxGroups; windows > 1 {
		from := int(e.rotation.Add(1)-1) % windows * pushheaders.MaxGroups
		claim.Groups = claim.Groups[from:min(from+pushheaders.MaxGroups, len(claim.Groups))]
	}
	return &claim
}

// readResponse takes the headers of the answer to a push that asked with a claim. It logs
// once that the gateway does not answer, and once that it answers again.
func (e *thresholdExtension) readResponse(
	ctx context.Context, transport threshold.Transport, target string, claim *pushheaders.Claim, values func(string) []string, answered bool,
) {
	outcome := "unanswered"
	if answered {
		var err error
		outcome, err = e.read(claim, values)
		if err = errors.Join(err, e.readState(ctx, claim, values)); err != nil {
			outcome = "invalid"
			e.warn("the gateway's answer was ignored in part or whole", err)
		}
	}
	e.telemetry.ExtensionStragglerThresholdResponses.Add(ctx, 1, metric.WithAttributeSet(outcomeSet(transport, outcome)))
	e.reachable.Store(answered)
	switch before := !e.unreached.Swap(!answered); {
	case before && !answered:
		e.set.Logger.Warn("The gateway does not answer: run the command `check` of this binary with the same configuration to find out why.",
			zap.String("gateway", target))
	case !before && answered:
		e.set.Logger.Info("The gateway answers again.", zap.String("gateway", target))
	}
}

// read keeps the valid values of an answer. It reports an invalid value, which does
// not take the valid values with it.
func (e *thresholdExtension) read(claim *pushheaders.Claim, values func(string) []string) (outcome string, err error) {
	now := e.now()
	var reported []threshold.Value
	if h := values(gpusemconv.HeaderParams); len(h) > 0 {
		reported, err = threshold.ParseAnswer(h, values(gpusemconv.HeaderVerdict), claim.Node)
	}
	if h := values(gpusemconv.HeaderThreshold); len(h) > 0 {
		v, invalid := threshold.ParsePlain(h[0], first(values(gpusemconv.HeaderQuorumMet)))
		if err = errors.Join(err, invalid); invalid == nil {
			v.Version, v.TTL = now.UnixMilli(), e.cfg.ReceivedTTL
			// The header has no version: the same value is the same computation.
			if last, ok := e.inbox.Get(claim.Cluster, ""); ok && last.Threshold == v.Threshold && last.QuorumMet == v.QuorumMet {
				v.Version = last.Version
			}
			reported = append(reported, v)
		}
	}
	outcome = "absent"
	for _, v := range reported {
		if e.inbox.Put(claim.Cluster, v, now) {
			outcome = "new"
			e.asks.Answered(claim.Cluster)
		} else if outcome == "absent" {
			outcome = "unchanged"
		}
	}
	return outcome, err
}

// readState finds out from an answer whether the next hop lost state, and
// requests a resync.
func (e *thresholdExtension) readState(ctx context.Context, claim *pushheaders.Claim, values func(string) []string) (err error) {
	if claim.Standing {
		var standing *threshold.Standing
		standing, err = threshold.ParseStanding(values(gpusemconv.HeaderStanding))
		e.last.Store(standing)
	}
	h := values(gpusemconv.HeaderEpoch)
	switch {
	case len(h) == 0:
		return err
	case !resync.ValidEpoch(h[0]):
		return errors.Join(err, fmt.Errorf("epoch of %d bytes, must be 1 to %d printable ASCII characters", len(h[0]), resync.MaxEpochLength))
	}
	now := e.now().Unix()
	last := e.answeredAt.Swap(now)
	if e.epochs.Observe(claim.Node != "", h[0]) {
		e.resync(ctx, claim)
	} else if last != 0 && now-last > int64(forgottenAfter/time.Second) {
		e.Subscribers.Publish()
	}
	return err
}

func (e *thresholdExtension) resync(ctx context.Context, claim *pushheaders.Claim) {
	e.telemetry.ExtensionStragglerThresholdResyncs.Add(ctx, 1)
	e.Subscribers.Publish()
	// The tiers below, whose state is not here, have to send all again. The state of one
	// node is in this process.
	if claim.Node == "" && e.isServer.Load() {
		e.renewEpoch()
	}
}

// warn logs at most once a minute: a peer must not fill the log.
func (e *thresholdExtension) warn(msg string, err error) {
	e.warned.Do(func() { e.set.Logger.Warn(msg, zap.Error(err)) })
}
