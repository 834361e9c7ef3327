// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/confcheck"
)

// confChecker is a converter that changes nothing: it refuses mistakes that the Collector
// would take for settings, and remembers what the configuration calls its components.
type confChecker struct {
	factories func() (otelcol.Factories, error)
	ids       []string
	hops      []confcheck.NextHop
}

// Convert implements confmap.Converter.
func (c *confChecker) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := c.factories()
	if err != nil {
		return err
	}
	whole := conf.ToStringMap()
	c.ids, c.hops = nil, confcheck.NextHops(whole)
	for _, section := range whole {
		if components, ok := section.(map[string]any); ok {
			c.ids = slices.AppendSeq(c.ids, maps.Keys(components))
		}
	}
	return confcheck.Check(whole, func(section, kind string) any {
		t, err := component.NewType(kind)
		if err != nil {
			return nil
		}
		switch section {
		case "receivers":
			return defaultOf(factories.Receivers, t)
		case "processors":
			return defaultOf(factories.Processors, t)
		case "exporters":
			return defaultOf(factories.Exporters, t)
		case "connectors":
			return defaultOf(factories.Connectors, t)
		default:
			return defaultOf(factories.Extensions, t)
		}
	})
}

// hopPatience bounds the questions for all names of a configuration.
const hopPatience = 3 * time.Second

// warnOfNames has `validate` tell of next hops whose names have no address here. That is no
// mistake: a configuration may be checked on another machine than it is for.
func (c *confChecker) warnOfNames(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.Name() != "validate" {
			continue
		}
		run := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), hopPatience)
			defer cancel()
			for _, hop := range c.hops {
				if _, err := net.DefaultResolver.LookupHost(ctx, hop.Host); err != nil {
					cmd.PrintErrf("Warning: the name %q of `%s` has no address on this machine: %v\n", hop.Host, hop.Key, err)
				}
			}
			return nil
		}
	}
}

func defaultOf[F component.Factory](factories map[component.Type]F, t component.Type) any {
	if f, known := factories[t]; known {
		return f.CreateDefaultConfig()
	}
	return nil
}

// suggest is an error's text with the right names for wrong ones.
func (c *confChecker) suggest(err error) string {
	factories, failed := c.factories()
	if failed != nil {
		return err.Error()
	}
	var configs []any
	for _, f := range factories.Receivers {
		configs = append(configs, f.CreateDefaultConfig())
	}
	for _, f := range factories.Processors {
		configs = append(configs, f.CreateDefaultConfig())
	}
	for _, f := range factories.Exporters {
		configs = append(configs, f.CreateDefaultConfig())
	}
	for _, f := range factories.Extensions {
		configs = append(configs, f.CreateDefaultConfig())
	}
	return confcheck.Suggest(err.Error(), confcheck.Keys(configs...), c.ids)
}
