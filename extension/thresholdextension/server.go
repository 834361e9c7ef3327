// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"cmp"
	"context"
	"net/http"
	"net/url"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

const metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// Ingero's names: X-Ingero-* over HTTP, the same without the prefix in gRPC
// metadata (pkg/contract of its agent). Its agent names the cluster in the
// query; its documentation also names a header.
const (
	ingeroThreshold     = "X-Ingero-Threshold"
	ingeroQuorumMet     = "X-Ingero-Quorum-Met"
	ingeroThresholdGRPC = "ingero-threshold"
	ingeroQuorumMetGRPC = "ingero-quorum-met"
	ingeroClusterHeader = "ingero.cluster.id"
	clusterQuery        = "cluster_id"
)

// Outcomes of a request, for the counter.
const (
	outcomeServed      = "served"
	outcomeNoThreshold = "no_threshold"
	outcomeNoCluster   = "no_cluster"
	outcomeInvalid     = "invalid"
)

// GetHTTPHandler implements extensionmiddleware.HTTPServer. Each POST is a push: the
// receiver's paths are not known here.
func (e *thresholdExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	e.Serve()
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return e.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				next.ServeHTTP(w, r)
				return
			}
			ctx, answer := e.push(r.Context(), threshold.HTTP, r.Header.Values, r.URL.RawQuery)
			aw := &answerWriter{ResponseWriter: w, answer: answer}
			next.ServeHTTP(aw, r.WithContext(ctx))
			aw.leave()
		})), nil
	}, nil
}

// Guard implements threshold.Server.
func (e *thresholdExtension) Guard(push http.Handler) http.Handler {
	return serverguard.Pages(e.apiHandler(push), isAPI, e.cfg.AllowedHosts...)
}

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer. Only a
// chained interceptor may be added: a second UnaryInterceptor panics.
func (e *thresholdExtension) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	e.Serve()
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if info.FullMethod != metricsMethod {
				return handler(ctx, req)
			}
			md, _ := metadata.FromIncomingContext(ctx)
			below, answer := e.push(ctx, threshold.GRPC, md.Get, "")
			resp, err := handler(below, req)
			out := make(metadata.MD)
			for _, h := range answer() {
				out.Set(h.Name, h.Value)
			}
			// Fails only when the headers are on their way already; the client
			// then keeps what it has.
			_ = grpc.SetHeader(ctx, out)
			return resp, err
		},
	)}, nil
}

// push begins a push whose claims count as far as the client's credentials say.
func (e *thresholdExtension) push(ctx context.Context, transport threshold.Transport, header func(string) []string, query string) (context.Context, func() []wire.Header) {
	p := threshold.Push{Transport: transport, Header: header}
	cluster, node := e.Claim(transport, header, query)
	e.identify(ctx, &p, cluster, node)
	return e.Push(ctx, &p)
}

// identify holds the claims of a push to the client's credentials.
func (e *thresholdExtension) identify(ctx context.Context, p *threshold.Push, cluster, node string) {
	if id, err := e.cfg.rule().Of(ctx); err == nil {
		p.Caller, p.Invalid = id.Caller(cluster)
		p.Node = id.NodeOr(node)
	}
}

// Serve implements threshold.Server.
func (e *thresholdExtension) Serve() { e.isServer.Store(true) }

// Claim implements threshold.Server: the cluster in the query comes first, then in our
// header, then in Ingero's.
func (e *thresholdExtension) Claim(transport threshold.Transport, header func(string) []string, query string) (cluster, node string) {
	if query != "" {
		values, _ := url.ParseQuery(query) // those that can be read
		cluster = values.Get(clusterQuery)
	}
	cluster = cmp.Or(cluster, first(header(gpusemconv.HeaderCluster)))
	if cluster == "" && e.ingero && transport == threshold.HTTP {
		cluster = first(header(ingeroClusterHeader))
	}
	return cluster, first(header(gpusemconv.HeaderNode))
}

// Push implements threshold.Server.
func (e *thresholdExtension) Push(ctx context.Context, p *threshold.Push) (context.Context, func() []wire.Header) {
	standing := e.standing(p)
	below := wire.ContextWithCaller(ctx, sender(p.Caller, first(p.Header(gpusemconv.HeaderTier))))
	return below, func() []wire.Header {
		return append(append(e.answer(below, p), standing...), wire.Header{Name: gpusemconv.HeaderEpoch, Value: *e.epoch.Load()})
	}
}

// answerWriter adds headers when they leave, with the status.
type answerWriter struct {
	http.ResponseWriter
	answer func() []wire.Header
	left   bool
}

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(code int) {
	if code >= http.StatusOK {
		w.leave()
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *answerWriter) Write(p []byte) (int, error) {
	w.leave()
	return w.ResponseWriter.Write(p)
}

// Unwrap lets an http.ResponseController find the writer's other methods.
func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *answerWriter) leave() {
	if w.left {
		return
	}
	w.left = true
	for _, h := range w.answer() {
		w.Header().Set(h.Name, h.Value)
	}
}

// answer is the thresholds and the verdict that the client asks for.
func (e *thresholdExtension) answer(ctx context.Context, p *threshold.Push) []wire.Header {
	outcome := outcomeServed
	if p.Invalid {
		outcome = outcomeInvalid
	}
	var groups []string
	if header := p.Header(gpusemconv.HeaderGroup); len(header) > 0 {
		var err error
		if groups, err = wire.ParseGroups(header); err != nil {
			outcome = outcomeInvalid
			e.warn("a client's peer groups were ignored", err)
		}
	}
	var headers []wire.Header
	if p.Caller.Cluster != "" {
		c := e.lookup(p.Caller.Cluster, groups)
		headers = c.Respond(headers, p.Node, groups)
		if e.ingero {
			if p.Transport == threshold.HTTP {
				headers = c.RespondIngero(headers, ingeroThreshold, ingeroQuorumMet)
			} else {
				headers = c.RespondIngero(headers, ingeroThresholdGRPC, ingeroQuorumMetGRPC)
			}
		}
	}
	switch {
	case outcome != outcomeServed:
	case p.Caller.Cluster == "":
		outcome = outcomeNoCluster
	case len(headers) == 0:
		outcome = outcomeNoThreshold
	}
	e.telemetry.ExtensionStragglerThresholdRequests.Add(ctx, 1,
		metric.WithAttributeSet(outcomeSet(string(p.Transport), outcome)))
	return headers
}

// standing tells a node that asks how it stands. It is nil for a push that does not ask.
func (e *thresholdExtension) standing(p *threshold.Push) []wire.Header {
	if first(p.Header(gpusemconv.HeaderStanding)) != wire.Yes {
		return nil
	}
	snap := e.published.Snapshot(e.now())
	if snap == nil || snap.Standing == nil || p.Caller.Cluster == "" || p.Node == "" {
		return []wire.Header{}
	}
	s := snap.Standing(p.Caller.Cluster, p.Node)
	return []wire.Header{{Name: gpusemconv.HeaderStanding, Value: s.Encode()}}
}

// lookup returns what is known of a cluster: computed here, or heard from the
// tier above.
func (e *thresholdExtension) lookup(cluster string, groups []string) *threshold.Cluster {
	now := e.now()
	if c := e.published.Cluster(cluster, now); c != nil || !e.isClient.Load() {
		return c
	}
	e.asks.Add(cluster, groups, now)
	return e.inbox.Cluster(cluster, groups, now)
}

// sender is whom a push is of. A tier in between asks in one cluster, and pushes the
// nodes of all: those without a cluster of their own are not of that one.
func sender(caller wire.Caller, tier string) wire.Caller {
	if tier != "" && !caller.Authenticated {
		return wire.Caller{}
	}
	return caller
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func outcomeSet(transport, outcome string) attribute.Set {
	return attribute.NewSet(attribute.String("transport", transport), attribute.String("outcome", outcome))
}
