// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"sync"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

const metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// Ingero's agent names the cluster in the query; its documentation also names a header.
const ingeroClusterHeader, clusterQuery = "ingero.cluster.id", "cluster_id"

// GetHTTPHandler implements extensionmiddleware.HTTPServer. Each POST is a push: the
// receiver's paths are not known here.
func (e *thresholdExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return e.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost {
				next.ServeHTTP(w, r)
				return
			}
			ctx, answer := e.push(r.Context(), threshold.HTTP, r.Header.Values, r.URL.RawQuery)
			leave := sync.OnceFunc(func() {
				for _, h := range answer() {
					w.Header().Set(h.Name, h.Value)
				}
			})
			next.ServeHTTP(answerWriter{w, leave}, r.WithContext(ctx))
			leave()
		})), nil
	}, nil
}

// answerWriter calls leave before the headers leave, with the status.
type answerWriter struct {
	http.ResponseWriter
	leave func()
}

// WriteHeader implements http.ResponseWriter.
func (w answerWriter) WriteHeader(code int) {
	if code >= http.StatusOK {
		w.leave()
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w answerWriter) Write(p []byte) (int, error) {
	w.leave()
	return w.ResponseWriter.Write(p)
}

// Unwrap lets an http.ResponseController find the writer's other methods.
func (w answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Guard implements threshold.Server.
func (e *thresholdExtension) Guard(push http.Handler) http.Handler {
	return serverguard.Pages(e.apiHandler(push), isAPI, e.cfg.AllowedHosts...)
}

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer. Only a
// chained interceptor may be added: a second UnaryInterceptor panics.
func (e *thresholdExtension) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
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

// push begins a push whose claims count as far as the client's credentials allow.
func (e *thresholdExtension) push(
	ctx context.Context, transport threshold.Transport, header func(string) []string, query string,
) (context.Context, func() []pushheaders.Header) {
	p := &threshold.Push{Transport: transport, Header: header}
	if id, err := e.cfg.Of(ctx); err == nil {
		cluster, node := e.Claim(transport, header, query)
		p.Caller, p.Invalid = id.Caller(cluster)
		p.Node = cmp.Or(id.Node, node)
	}
	return e.Push(ctx, p)
}

// Claim implements threshold.Server: the cluster in the query comes first, then in our
// header, then in Ingero's.
func (e *thresholdExtension) Claim(transport threshold.Transport, header func(string) []string, query string) (cluster, node string) {
	if query != "" {
		values, _ := url.ParseQuery(query) // those that can be read
		cluster = values.Get(clusterQuery)
	}
	cluster = cmp.Or(cluster, first(header(gpusemconv.HeaderCluster)))
	if cluster == "" && e.cfg.ingero() && transport == threshold.HTTP {
		cluster = first(header(ingeroClusterHeader))
	}
	return cluster, first(header(gpusemconv.HeaderNode))
}

// Push implements threshold.Server.
func (e *thresholdExtension) Push(ctx context.Context, p *threshold.Push) (context.Context, func() []pushheaders.Header) {
	e.isServer.Store(true)
	sender := p.Caller
	if !sender.Authenticated && first(p.Header(gpusemconv.HeaderTier)) != "" {
		// A tier in between asks in one cluster, and pushes the nodes of all: those without
		// a cluster of their own are not of that one.
		sender = pushheaders.Caller{}
	}
	return pushheaders.ContextWithCaller(ctx, sender), func() []pushheaders.Header {
		return append(e.answer(ctx, p), pushheaders.Header{Name: gpusemconv.HeaderEpoch, Value: *e.epoch.Load()})
	}
}

// answer is the thresholds and the verdict that the client asks for, and how it stands.
func (e *thresholdExtension) answer(ctx context.Context, p *threshold.Push) (headers []pushheaders.Header) {
	groups, err := pushheaders.ParseGroups(p.Header(gpusemconv.HeaderGroup))
	if err != nil {
		e.warn("a client's peer groups were ignored", err)
	}
	if p.Caller.Cluster != "" {
		c := e.lookup(p.Caller.Cluster, groups)
		headers = c.Respond(headers, p.Node, groups)
		if e.cfg.ingero() {
			headers = c.RespondIngero(headers, p.Transport)
		}
	}
	outcome := "served"
	switch {
	case p.Invalid || err != nil:
		outcome = "invalid"
	case p.Caller.Cluster == "":
		outcome = "no_cluster"
	case len(headers) == 0:
		outcome = "no_threshold"
	}
	e.telemetry.ExtensionStragglerThresholdRequests.Add(ctx, 1, metric.WithAttributeSet(outcomeSet(p.Transport, outcome)))
	if first(p.Header(gpusemconv.HeaderStanding)) == pushheaders.Yes && p.Caller.Cluster != "" && p.Node != "" {
		if snap := e.published.Snapshot(e.now()); snap != nil && snap.Standing != nil {
			s := snap.Standing(p.Caller.Cluster, p.Node)
			headers = append(headers, pushheaders.Header{Name: gpusemconv.HeaderStanding, Value: s.Encode()})
		}
	}
	return headers
}

// lookup returns what is known of a cluster: computed here, or received from the
// tier above.
func (e *thresholdExtension) lookup(cluster string, groups []string) *threshold.Cluster {
	now := e.now()
	if c := e.published.Cluster(cluster, now); c != nil || !e.isClient.Load() {
		return c
	}
	e.asks.Add(cluster, groups, now)
	return e.inbox.Cluster(cluster, groups, now)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func outcomeSet(transport threshold.Transport, outcome string) attribute.Set {
	return attribute.NewSet(attribute.String("transport", string(transport)), attribute.String("outcome", outcome))
}
