// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor/internal/metadata"
)

// guard judges resources.
type guard struct {
	rule      clientidentity.Rule
	own       clientidentity.Identity // in place of the rule's, where that is off
	overwrite bool
	telemetry *metadata.TelemetryBuilder
}

func newGuard(set processor.Settings, cfg *Config) (*guard, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &guard{rule: cfg.rule(), own: cfg.own(), overwrite: cfg.Foreign == foreignOverwrite, telemetry: tb}, nil
}

// Capabilities implements consumer.
func (*guard) Capabilities() consumer.Capabilities { return consumer.Capabilities{MutatesData: true} }

// Start implements component.Component.
func (*guard) Start(context.Context, component.Host) error { return nil }

// Shutdown implements component.Component.
func (g *guard) Shutdown(context.Context) error {
	g.telemetry.Shutdown()
	return nil
}

// identity returns who pushes, or a refusal: whoever is not known may claim
// nothing.
func (g *guard) identity(ctx context.Context) (clientidentity.Identity, error) {
	if !g.rule.On() {
		return g.own, nil
	}
	id, err := g.rule.Of(ctx)
	if err != nil {
		err = g.refuse(ctx, err.Error())
	}
	return id, err
}

// refuse returns an error after which senders do not try again.
func (g *guard) refuse(ctx context.Context, text string) error {
	g.telemetry.ProcessorClientIdentityRefusedPushes.Add(ctx, 1)
	return status.Error(codes.PermissionDenied, text)
}

// claim is a name that a resource gives itself and that is not its sender's.
type claim struct{ attribute, value, own string }

// settle writes for whom a resource speaks, and returns its first claim that
// is not its sender's. A resource that names nobody is its sender's.
func settle(attrs pcommon.Map, id clientidentity.Identity) (foreign claim, found bool) {
	check := func(name, own string) {
		if c, ok := put(attrs, name, own); ok && !found {
			foreign, found = c, true
		}
	}
	if id.Cluster != clientidentity.Any {
		check(gpusemconv.AttrClusterName, id.Cluster)
	}
	if id.Node != clientidentity.Any {
		// The first of the two is the node's name, as everywhere in this module. On
		// Kubernetes the other is often a pod's, and would stand for a node with
		// whoever reads only that.
		if _, ok := attrs.Get(gpusemconv.AttrK8sNodeName); ok {
			check(gpusemconv.AttrK8sNodeName, id.Node)
			put(attrs, gpusemconv.AttrHostName, id.Node)
		} else {
			check(gpusemconv.AttrHostName, id.Node)
		}
	}
	return foreign, found
}

// put leaves one attribute of a name, and returns what else it was. On the
// wire there may be several, of which some readers take the first and others
// the last.
func put(attrs pcommon.Map, name, own string) (other claim, found bool) {
	n := 0
	for k, v := range attrs.All() {
		if k != name {
			continue
		}
		n++
		if !found && (v.Type() != pcommon.ValueTypeStr || v.Str() != own) {
			other, found = claim{name, short(v.AsString()), own}, true
		}
	}
	if n == 1 && !found {
		return other, false
	}
	if n > 1 {
		attrs.RemoveIf(func(k string, _ pcommon.Value) bool { return k == name })
	}
	attrs.PutStr(name, own)
	return other, found
}

// maxClaim is how much of a foreign name an error repeats.
const maxClaim = 64

func short(s string) string { return s[:min(len(s), maxClaim)] }

// settleAll settles the resources that at returns.
func (g *guard) settleAll(ctx context.Context, n int, at func(int) pcommon.Resource) error {
	id, err := g.identity(ctx)
	if err != nil {
		return err
	}
	var first claim
	foreign := 0
	for i := range n {
		if c, found := settle(at(i).Attributes(), id); found {
			if foreign == 0 {
				first = c
			}
			foreign++
		}
	}
	if foreign == 0 {
		return nil
	}
	g.telemetry.ProcessorClientIdentityForeignResources.Add(ctx, int64(foreign))
	if g.overwrite {
		return nil
	}
	return g.refuse(ctx, fmt.Sprintf("`%s` is %q, which is not the client's own: must be %q", first.attribute, first.value, first.own))
}

type metricsGuard struct {
	*guard
	next consumer.Metrics
}

// ConsumeMetrics implements consumer.Metrics.
func (g *metricsGuard) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	rs := md.ResourceMetrics()
	if err := g.settleAll(ctx, rs.Len(), func(i int) pcommon.Resource { return rs.At(i).Resource() }); err != nil {
		return err
	}
	return g.next.ConsumeMetrics(ctx, md)
}

type logsGuard struct {
	*guard
	next consumer.Logs
}

// ConsumeLogs implements consumer.Logs.
func (g *logsGuard) ConsumeLogs(ctx context.Context, ld plog.Logs) error {
	rs := ld.ResourceLogs()
	if err := g.settleAll(ctx, rs.Len(), func(i int) pcommon.Resource { return rs.At(i).Resource() }); err != nil {
		return err
	}
	return g.next.ConsumeLogs(ctx, ld)
}

type tracesGuard struct {
	*guard
	next consumer.Traces
}

// ConsumeTraces implements consumer.Traces.
func (g *tracesGuard) ConsumeTraces(ctx context.Context, td ptrace.Traces) error {
	rs := td.ResourceSpans()
	if err := g.settleAll(ctx, rs.Len(), func(i int) pcommon.Resource { return rs.At(i).Resource() }); err != nil {
		return err
	}
	return g.next.ConsumeTraces(ctx, td)
}
