// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/check"
	"github.com/gpu-collector/gpu-collector/internal/node/ownnode"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

const thresholdType = "straggler_threshold"

// host has the extensions that an exporter refers to.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// references are what the check reads of an exporter's settings.
type references struct {
	Endpoint        string `mapstructure:"endpoint"`
	MetricsEndpoint string `mapstructure:"metrics_endpoint"`
	Auth            struct {
		Authenticator component.ID `mapstructure:"authenticator"`
	} `mapstructure:"auth"`
	Middlewares []struct {
		ID component.ID `mapstructure:"id"`
	} `mapstructure:"middlewares"`
}

// next finds the exporter that asks for thresholds.
func next(c *distro.Configuration) (exporter distro.Setup, refs references, threshold component.ID) {
	for _, e := range c.Section("exporters") {
		var r references
		if confmap.NewFromStringMap(e.Settings).Unmarshal(&r, confmap.WithIgnoreUnused()) != nil {
			continue
		}
		for _, m := range r.Middlewares {
			if m.ID.Type().String() == thresholdType {
				return e, r, m.ID
			}
		}
	}
	return distro.Setup{}, references{}, component.ID{}
}

// gateway asks the next hop how it sees this node.
func gateway(ctx context.Context, c *distro.Configuration, set component.TelemetrySettings) []check.Finding {
	g := &check.Gateway{}
	if out, refs, id := next(c); out.Settings != nil {
		g.Exporter, g.Endpoint = "exporters::"+out.ID.String(), cmp.Or(refs.MetricsEndpoint, refs.Endpoint)
		if g.Err = ask(ctx, c, set, g, &out, &refs, id); g.Err != nil {
			g.Err = cmp.Or(dial(ctx, g.Endpoint), g.Err)
		}
	}
	return g.Findings()
}

// dial says why no connection comes about, which gRPC does not say of a name without address.
func dial(ctx context.Context, endpoint string) error {
	address := endpoint[strings.LastIndex(endpoint, "/")+1:] // dns:///gateway:4317
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		address = u.Host
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	return err
}

// ask sends an empty push with the configuration's own exporter, which reaches no pipeline
// of the gateway, and reads the answer as the agent does.
func ask(ctx context.Context, c *distro.Configuration, set component.TelemetrySettings, g *check.Gateway, out *distro.Setup, refs *references, id component.ID) error {
	g.Node = ownnode.Name("")
	nvml, _ := nvml(c)
	if own, ok := nvml.Parsed.(ownnode.Namer); ok {
		g.Cluster, g.Node = own.OwnNode()
	}
	h, err := extensions(ctx, c, set, refs)
	if err != nil {
		return err
	}
	source, asks := h[id].(threshold.Source)
	standing, hasStanding := h[id].(threshold.StandingSource)
	if !asks || !hasStanding {
		return errors.New(id.String() + " asks for no thresholds")
	}
	factory := c.Factories.Exporters[out.ID.Type()]
	off := map[string]any{"enabled": false}
	cfg, err := out.Config(factory, map[string]any{"sending_queue": off, "retry_on_failure": off, "timeout": "0s"})
	if err != nil {
		return err
	}
	e, err := factory.CreateMetrics(ctx, exporter.Settings{ID: out.ID, TelemetrySettings: set}, cfg)
	if err != nil {
		return err
	}
	if err = e.Start(ctx, h); err != nil {
		return err
	}
	claim := pushheaders.Claim{Cluster: g.Cluster, Node: g.Node, Standing: true}
	source.SetClaim(claim)
	if err = e.ConsumeMetrics(ctx, pmetric.NewMetrics()); err != nil {
		return err
	}
	if g.Standing = standing.Standing(); g.Standing != nil && g.Standing.Node != "" {
		claim.Groups = []string{g.Standing.Group}
		source.SetClaim(claim)
		_ = e.ConsumeMetrics(ctx, pmetric.NewMetrics()) // what came so far stands
	}
	for _, group := range append(claim.Groups, "") {
		if t, ok := source.Received(claim.Cluster, group); ok {
			g.Threshold = &t
			break
		}
	}
	return nil
}

// extensions are those that the exporter refers to. Of the thresholds' only the client side is
// wanted: its start would open the API's port.
func extensions(ctx context.Context, c *distro.Configuration, set component.TelemetrySettings, refs *references) (host, error) {
	needed := map[component.ID]bool{refs.Auth.Authenticator: true}
	for _, m := range refs.Middlewares {
		needed[m.ID] = true
	}
	h := host{}
	for _, setup := range c.Section("extensions") {
		if !needed[setup.ID] {
			continue
		}
		factory := c.Factories.Extensions[setup.ID.Type()]
		cfg, err := setup.Config(factory, nil)
		if err != nil {
			return nil, err
		}
		ext, err := factory.Create(ctx, extension.Settings{ID: setup.ID, TelemetrySettings: set}, cfg)
		if err != nil {
			return nil, err
		}
		if h[setup.ID] = ext; setup.ID.Type().String() != thresholdType {
			err = ext.Start(ctx, h)
		} else if w, ok := ext.(extensioncapabilities.PipelineWatcher); ok {
			err = w.Ready()
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}
