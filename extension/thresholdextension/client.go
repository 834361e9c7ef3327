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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Outcomes of an answer, for the counter.
const (
	outcomeNew        = "new"
	outcomeUnchanged  = "unchanged"
	outcomeAbsent     = "absent"
	outcomeUnanswered = "unanswered"
)

// maxReconnectDelay bounds the pause between two attempts to connect: a gateway
// that is back has to hear of its nodes with their next push. gRPC doubles the
// pause up to two minutes by default, and configgrpc has no key for it.
const maxReconnectDelay = 5 * time.Second

// forgottenAfter is the silence after which the next hop may take series for ended: a table
// holds a quiet series back after half of its `ttl`, 5 minutes by default.
const forgottenAfter = 4 * time.Minute

// warnInterval is the least time between two warnings about one peer's headers.
const warnInterval = time.Minute

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
	for _, h := range t.ext.claimHeaders(claim) {
		r.Header.Set(h.Name, h.Value)
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil {
		t.ext.hear(r.Context(), "http", claim, nil, false)
		t.ext.reached(r.URL.Host, false)
		return resp, err
	}
	t.ext.reached(r.URL.Host, t.ext.answered(resp))
	t.ext.hear(r.Context(), "http", claim, resp.Header.Values, t.ext.answered(resp))
	return resp, nil
}

// answered tells a gateway's refusal from a proxy that speaks for an absent
// gateway: the gateway says its epoch, or when to come back (RFC 9110, 10.2.3);
// one of an older version or of Ingero's says at most its threshold.
func (e *thresholdExtension) answered(resp *http.Response) bool {
	return resp.StatusCode < http.StatusInternalServerError ||
		resp.Header.Get("Retry-After") != "" ||
		resp.Header.Get(gpusemconv.HeaderEpoch) != "" ||
		resp.Header.Get(gpusemconv.HeaderThreshold) != "" ||
		resp.Header.Get(gpusemconv.HeaderParams) != ""
}

// GetGRPCClientOptions implements extensionmiddleware.GRPCClient. It may only add a
// chained interceptor: WithUnaryInterceptor would silently replace the interceptor
// that sets the exporter's configured headers.
func (e *thresholdExtension) GetGRPCClientOptions(context.Context) ([]grpc.DialOption, error) {
	e.isClient.Store(true)
	reconnect := backoff.DefaultConfig
	reconnect.MaxDelay = maxReconnectDelay
	opts := []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: reconnect, MinConnectTimeout: maxReconnectDelay,
	}), grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
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
			for _, h := range e.claimHeaders(claim) {
				pairs = append(pairs, h.Name, h.Value)
			}
			ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
			var md metadata.MD
			err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Header(&md))...)
			code := status.Code(err)
			unanswered := len(md) == 0 && len(status.Convert(err).Details()) == 0 && (code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled)
			e.hear(ctx, "grpc", claim, md.Get, !unanswered)
			e.reached(cc.Target(), !unanswered)
			return err
		},
	)}
	if header := e.hashHeader(); header != "" {
		// After the exporter's own balancer_name, so that this one holds.
		opts = append(opts, grpc.WithDefaultServiceConfig(hashServiceConfig(header)))
	}
	return opts, nil
}

// ask returns the claim of this push: for the nodes of this agent, or else for the
// clients that asked here. Groups beyond one request's bound take turns.
func (e *thresholdExtension) ask() *wire.Claim {
	claim := e.claim.Load()
	if claim.Node == "" && len(claim.Groups) == 0 {
		below := e.asks.Next(e.now())
		if below.Cluster == "" {
			below = *claim
		}
		below.Tier = e.isServer.Load()
		return &below
	}
	if len(claim.Groups) <= wire.MaxGroups {
		return claim
	}
	windows := (len(claim.Groups) + wire.MaxGroups - 1) / wire.MaxGroups
	from := int(e.rotation.Add(1)-1) % windows * wire.MaxGroups
	part := *claim
	part.Groups = claim.Groups[from:min(from+wire.MaxGroups, len(claim.Groups))]
	return &part
}

func (e *thresholdExtension) claimHeaders(c *wire.Claim) []wire.Header {
	headers := make([]wire.Header, 0, 5)
	if wire.ValidName(c.Cluster) {
		headers = append(headers, wire.Header{Name: gpusemconv.HeaderCluster, Value: c.Cluster})
	}
	if wire.ValidName(c.Node) {
		headers = append(headers, wire.Header{Name: gpusemconv.HeaderNode, Value: c.Node})
	}
	if c.Tier {
		headers = append(headers, wire.Header{Name: gpusemconv.HeaderTier, Value: "true"})
	}
	if c.Standing {
		headers = append(headers, wire.Header{Name: gpusemconv.HeaderStanding, Value: wire.Yes})
	}
	// The names are checked one by one, so that marshalling cannot fail.
	if list, err := wire.EncodeGroups(c.Groups); err == nil && list != "" {
		headers = append(headers, wire.Header{Name: gpusemconv.HeaderGroup, Value: list})
	}
	return headers
}

// hear takes the headers of the answer to a push that asked with a claim.
func (e *thresholdExtension) hear(ctx context.Context, transport string, claim *wire.Claim, values func(string) []string, answered bool) {
	outcome := outcomeUnanswered
	if answered {
		var node string
		if wire.ValidName(claim.Node) {
			node = claim.Node
		}
		var err error
		if outcome, err = e.read(claim.Cluster, node, values); err != nil {
			e.warn("the gateway's threshold was ignored in part or whole", err)
		}
		if err = e.readState(ctx, claim, node, values); err != nil {
			outcome = outcomeInvalid
			e.warn("the next hop's word on its state was ignored in part or whole", err)
		}
	}
	e.telemetry.ExtensionStragglerThresholdResponses.Add(ctx, 1,
		metric.WithAttributeSet(outcomeSet(transport, outcome)))
}

// read keeps the valid values of an answer. It reports an invalid value, which does
// not take the valid values with it.
func (e *thresholdExtension) read(cluster, node string, values func(string) []string) (string, error) {
	now := e.now()
	outcome := outcomeAbsent
	put := func(v threshold.Value) {
		if e.inbox.Put(cluster, v, now) {
			outcome = outcomeNew
		} else if outcome == outcomeAbsent {
			outcome = outcomeUnchanged
		}
	}
	var errs []error
	if h := values(gpusemconv.HeaderThreshold); len(h) > 0 {
		t, err := threshold.ParseThreshold(h[0])
		quorum := first(values(gpusemconv.HeaderQuorumMet))
		switch {
		case err != nil:
			errs = append(errs, err)
		case quorum != "true" && quorum != "false":
			errs = append(errs, errors.New("quorum header is neither true nor false"))
		default:
			v := threshold.Value{Version: now.UnixMilli(), Threshold: t, QuorumMet: quorum == "true", TTL: e.cfg.ReceivedTTL}
			// The header has no version: the same value is the same computation.
			if last, ok := e.inbox.Get(cluster, ""); ok && last.Threshold == v.Threshold && last.QuorumMet == v.QuorumMet {
				v.Version = last.Version
			}
			put(v)
		}
	}
	if h := values(gpusemconv.HeaderParams); len(h) > 0 {
		params, err := threshold.ParseAnswer(h, values(gpusemconv.HeaderVerdict), node)
		errs = append(errs, err)
		for _, v := range params {
			put(v)
		}
	}
	if outcome == outcomeNew {
		e.asks.Hear(cluster)
	}
	err := errors.Join(errs...)
	if err != nil {
		outcome = outcomeInvalid
	}
	return outcome, err
}

// readState finds out from an answer whether the next hop lacks state, and
// hands on whose.
func (e *thresholdExtension) readState(ctx context.Context, claim *wire.Claim, node string, values func(string) []string) error {
	cluster := claim.Cluster
	var errs []error
	if claim.Standing {
		standing, err := threshold.ParseStanding(values(gpusemconv.HeaderStanding))
		errs = append(errs, err)
		e.last.Store(standing)
	}
	if h := values(gpusemconv.HeaderEpoch); len(h) > 0 {
		if !resync.ValidEpoch(h[0]) {
			errs = append(errs, fmt.Errorf("epoch of %d bytes, must be 1 to %d printable ASCII characters", len(h[0]), resync.MaxEpochLength))
		} else {
			now := e.now().Unix()
			last := e.answeredAt.Swap(now)
			if r, lost := e.epochs.Hear(cluster, node, h[0]); lost {
				e.resync(ctx, r)
			} else if last != 0 && now-last > int64(forgottenAfter/time.Second) {
				e.subscribers.Publish(resync.Request{})
			}
		}
	}
	return errors.Join(errs...)
}

func (e *thresholdExtension) resync(ctx context.Context, r resync.Request) {
	e.telemetry.ExtensionStragglerThresholdResyncs.Add(ctx, 1)
	e.subscribers.Publish(r)
	// Who keeps no state here, as the tiers below do, has to send all again. Of one node
	// the state is in this process.
	if r.Node == "" && e.isServer.Load() {
		e.renewEpoch()
	}
}

// reached notes whether the gateway answered, and says once that it does not: what a
// transport says of that is in its own words, and in each push.
func (e *thresholdExtension) reached(target string, answered bool) {
	e.reachable.Store(answered)
	if answered {
		e.unreached.Store(false)
	} else if !e.unreached.Swap(true) {
		e.set.Logger.Warn("The gateway does not answer: run the command `check` of this binary with the same configuration to find out why.",
			zap.String("gateway", target))
	}
}

// warn logs at most once per warnInterval: a peer must not fill the log.
func (e *thresholdExtension) warn(msg string, err error) {
	now := e.now().Unix()
	last := e.warned.Load()
	if now-last < int64(warnInterval/time.Second) || !e.warned.CompareAndSwap(last, now) {
		return
	}
	e.set.Logger.Warn(msg, zap.Error(err))
}
