// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

const (
	metricsPath   = "/v1/metrics"
	metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
)

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

// GetHTTPHandler implements extensionmiddleware.HTTPServer. The headers are
// set before the receiver runs, so that refusals carry them too; the value is
// at most one tick old either way.
func (e *thresholdExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	e.isServer.Store(true)
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		push := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, metricsPath) {
				next.ServeHTTP(w, r)
				return
			}
			node := e.node(r.Context(), r.Header.Get(e.names.Node))
			caller, headers := e.answer(r.Context(), "http", e.httpClaim(r), node, r.Header.Values(e.names.Group))
			for _, h := range headers {
				w.Header().Set(h.Name, h.Value)
			}
			for _, h := range e.standing(r.Header.Get(e.names.Standing), caller.Cluster, &node) {
				w.Header().Set(h.Name, h.Value)
			}
			ctx, asked := resync.ContextWithAnswer(wire.ContextWithCaller(r.Context(), sender(caller, r.Header.Get(e.names.Tier))))
			aw := &answerWriter{ResponseWriter: w, state: func() []wire.Header {
				return e.state(ctx, asked, caller.Cluster, node)
			}}
			next.ServeHTTP(aw, r.WithContext(ctx))
			aw.leave()
		})
		open := e.apiHandler(push)
		guarded := webguard.Hosts(open, e.cfg.AllowedHosts...)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// A page has no certificate for its name, nor a password. Its browser says Origin
			// with a push; an agent does not, whatever name it knows this server by.
			asked := isAPI(r) || r.Header.Get("Origin") != ""
			if asked && r.TLS == nil && client.FromContext(r.Context()).Auth == nil {
				guarded.ServeHTTP(w, r)
			} else {
				open.ServeHTTP(w, r)
			}
		}), nil
	}, nil
}

// GetGRPCServerOptions implements extensionmiddleware.GRPCServer. Only a
// chained interceptor may be added: a second UnaryInterceptor panics.
func (e *thresholdExtension) GetGRPCServerOptions(context.Context) ([]grpc.ServerOption, error) {
	e.isServer.Store(true)
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if info.FullMethod != metricsMethod {
				return handler(ctx, req)
			}
			md, _ := metadata.FromIncomingContext(ctx)
			node := e.node(ctx, first(md.Get(e.names.Node)))
			caller, headers := e.answer(ctx, "grpc", first(md.Get(e.names.Cluster)), node, md.Get(e.names.Group))
			out := make(metadata.MD, len(headers))
			for _, h := range headers {
				out.Set(h.Name, h.Value)
			}
			for _, h := range e.standing(first(md.Get(e.names.Standing)), caller.Cluster, &node) {
				out.Set(h.Name, h.Value)
			}
			// Fails only when the headers are on their way already; the client
			// then keeps what it has.
			_ = grpc.SetHeader(ctx, out)
			below, asked := resync.ContextWithAnswer(wire.ContextWithCaller(ctx, sender(caller, first(md.Get(e.names.Tier)))))
			resp, err := handler(below, req)
			out = make(metadata.MD, 2)
			for _, h := range e.state(below, asked, caller.Cluster, node) {
				out.Set(h.Name, h.Value)
			}
			_ = grpc.SetHeader(ctx, out)
			return resp, err
		},
	)}, nil
}

// state says in which life this server is, and whose state it lacks: found
// out by the pipeline, or by the tier above from an earlier push. It is asked
// for once the pipeline is done, since that may have heard of it just now.
func (e *thresholdExtension) state(ctx context.Context, asked *resync.Answer, cluster, node string) []wire.Header {
	// The pipeline lacks the state of these nodes. A front door of this process, as
	// wire_diff is, must not take that state for known.
	for _, r := range asked.Requests() {
		e.subscribers.Publish(r)
	}
	if e.wanted.Take(cluster, node) && !resync.Ask(ctx, node) {
		e.wanted.Add(resync.Request{Cluster: cluster, Node: node}) // the answer is full
	}
	headers := []wire.Header{{Name: e.names.Epoch, Value: *e.epoch.Load()}}
	if want := asked.Header(); want != "" {
		headers = append(headers, wire.Header{Name: e.names.Resync, Value: want})
	}
	return headers
}

// answerWriter adds headers when they leave, with the status.
type answerWriter struct {
	http.ResponseWriter
	state func() []wire.Header
	left  bool
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
	for _, h := range w.state() {
		w.Header().Set(h.Name, h.Value)
	}
}

// httpClaim returns the cluster that the client names: in the query, then in
// our header, then in Ingero's.
func (e *thresholdExtension) httpClaim(r *http.Request) string {
	if r.URL.RawQuery != "" {
		if c := r.URL.Query().Get(clusterQuery); c != "" {
			return c
		}
	}
	if c := r.Header.Get(e.names.Cluster); c != "" || !e.ingero {
		return c
	}
	return r.Header.Get(ingeroClusterHeader)
}

// answer resolves who asks, for which node if it is one node's push, and what there is to
// say.
func (e *thresholdExtension) answer(ctx context.Context, transport, claimed, node string, groupHeader []string) (wire.Caller, []wire.Header) {
	outcome := outcomeServed
	caller, ok := e.caller(ctx, claimed)
	if !ok {
		outcome = outcomeInvalid
	}
	var groups []string
	if len(groupHeader) > 0 {
		var err error
		if groups, err = wire.ParseGroups(groupHeader); err != nil {
			outcome = outcomeInvalid
			e.warn("a client's peer groups were ignored", err)
		}
	}
	var headers []wire.Header
	if caller.Cluster != "" {
		c := e.lookup(caller.Cluster, groups)
		headers = c.Respond(headers, &e.names, node, groups)
		if e.ingero {
			if transport == "http" {
				headers = c.RespondIngero(headers, ingeroThreshold, ingeroQuorumMet)
			} else {
				headers = c.RespondIngero(headers, ingeroThresholdGRPC, ingeroQuorumMetGRPC)
			}
		}
	}
	switch {
	case outcome != outcomeServed:
	case caller.Cluster == "":
		outcome = outcomeNoCluster
	case len(headers) == 0:
		outcome = outcomeNoThreshold
	}
	e.telemetry.ExtensionStragglerThresholdRequests.Add(ctx, 1,
		metric.WithAttributeSet(outcomeSet(transport, outcome)))
	return caller, headers
}

// standing tells a node that asks how it stands. Such a push is of `check`, not of the node's
// agent: it loses the node's name, so that it takes no request that waits for the agent.
func (e *thresholdExtension) standing(asked, cluster string, node *string) []wire.Header {
	if asked != wire.Yes {
		return nil
	}
	name := *node
	*node = ""
	snap := e.published.Snapshot(e.now())
	if snap == nil || snap.Standing == nil || cluster == "" || name == "" {
		return nil
	}
	s := snap.Standing(cluster, name)
	return []wire.Header{{Name: e.names.Standing, Value: s.Encode()}}
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

// caller binds the claim to the authenticated identity where that is asked
// for. It reports false for a claim that cannot name a cluster.
func (e *thresholdExtension) caller(ctx context.Context, claimed string) (wire.Caller, bool) {
	authenticated := false
	if rule := e.cfg.rule(); rule.On() {
		id, err := rule.Of(ctx)
		if err != nil {
			return wire.Caller{}, true
		}
		claimed, authenticated = id.ClusterOr(claimed), id.Cluster != clientidentity.Any
	}
	if claimed == "" {
		return wire.Caller{}, true
	}
	if !wire.ValidName(claimed) {
		return wire.Caller{}, false
	}
	return wire.Caller{Cluster: claimed, Authenticated: authenticated}, true
}

// sender is whom a push is of. A tier in between asks in one cluster, and pushes the
// nodes of all: those without a cluster of their own are not of that one.
func sender(caller wire.Caller, tier string) wire.Caller {
	if tier != "" && !caller.Authenticated {
		return wire.Caller{}
	}
	return caller
}

// node returns the node that a push is of: its claim, or its client's own.
func (e *thresholdExtension) node(ctx context.Context, claimed string) string {
	rule := e.cfg.rule()
	if !rule.On() {
		return claimed
	}
	id, err := rule.Of(ctx)
	if err != nil {
		return ""
	}
	return id.NodeOr(claimed)
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
