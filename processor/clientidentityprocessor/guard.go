// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/processor"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
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
		check(identity.Cluster, id.Cluster)
	}
	if id.Node != clientidentity.Any {
		check(identity.Claim(func(key string) bool { _, ok := attrs.Get(key); return ok }), id.Node)
		// On Kubernetes it is often a pod's, and would stand for a node with whoever
		// reads only that.
		put(attrs, identity.Host, id.Node)
	}
	return foreign, found
}

// put leaves one attribute of a name, and returns what else it was. On the wire
// there may be several. Some readers take the first, others the last.
func put(attrs pcommon.Map, name, own string) (other claim, found bool) {
	n, plain := 0, true
	for k, v := range attrs.All() {
		if k != name {
			continue
		}
		n++
		plain = v.Type() == pcommon.ValueTypeStr
		if !found && metricreading.Text(v) != own {
			other, found = claim{name, short(v.AsString()), own}, true
		}
	}
	if n == 1 && plain && !found {
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

// resources are those of a push of any signal.
type resources[R interface{ Resource() pcommon.Resource }] interface {
	Len() int
	At(i int) R
}

// settled settles the resources of a push, and hands it on.
func settled[R interface{ Resource() pcommon.Resource }, L resources[R]](ctx context.Context, g *guard, list L, next func() error) error {
	id, err := g.identity(ctx)
	if err != nil {
		return err
	}
	var first claim
	foreign := 0
	for i := range list.Len() {
		if c, found := settle(list.At(i).Resource().Attributes(), id); found {
			if foreign == 0 {
				first = c
			}
			foreign++
		}
	}
	if foreign > 0 {
		g.telemetry.ProcessorClientIdentityForeignResources.Add(ctx, int64(foreign))
		if !g.overwrite {
			return g.refuse(ctx, fmt.Sprintf("`%s` is %q, which is not the client's own: must be %q", first.attribute, first.value, first.own))
		}
	}
	return next()
}
