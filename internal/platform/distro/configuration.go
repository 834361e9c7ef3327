// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
)

// Configuration is one that `validate` takes, as commands read it.
type Configuration struct {
	Factories otelcol.Factories
	Listens   []Listen
	used      []Setup
}

// Setup is a component that the service names.
type Setup struct {
	Section string
	ID      component.ID
	// Settings are as written, without the defaults, and whole with those, where they fit.
	Settings, whole map[string]any
	// Parsed is the settings over the defaults, and the defaults alone where they do not fit.
	Parsed component.Config
}

// Read resolves and validates the configuration of the URIs, by the Collector's own means.
func Read(ctx context.Context, set otelcol.CollectorSettings, uris []string) (*Configuration, error) {
	c := &Configuration{}
	resolver := &set.ConfigProviderSettings.ResolverSettings
	resolver.URIs, resolver.DefaultScheme = uris, cmp.Or(resolver.DefaultScheme, "env")
	resolver.ConverterFactories = append(slices.Clone(resolver.ConverterFactories),
		confmap.NewConverterFactory(func(confmap.ConverterSettings) confmap.Converter { return c }))
	var err error
	if c.Factories, err = set.Factories(); err != nil {
		return nil, err
	}
	collector, err := otelcol.NewCollector(set)
	if err != nil {
		return nil, err
	}
	if err := collector.DryRun(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Convert implements confmap.Converter, the last of all: it changes nothing.
func (c *Configuration) Convert(_ context.Context, conf *confmap.Conf) error {
	c.used, _ = usedComponents(conf, c.Factories)
	all := listens(conf, c.used, c.Factories)
	// A component may not use all of its defaults.
	c.Listens = slices.DeleteFunc(all, func(l Listen) bool { return !l.telemetry && !conf.IsSet(l.Key) })
	return nil
}

// Section lists the components of a section, such as `exporters`, in the order of their names.
func (c *Configuration) Section(section string) []Setup {
	return slices.DeleteFunc(slices.Clone(c.used), func(s Setup) bool { return s.Section != section })
}

// Config is a component's, with these settings over the written ones.
func (s *Setup) Config(factory component.Factory, over map[string]any) (component.Config, error) {
	config, settings := factory.CreateDefaultConfig(), confmap.NewFromStringMap(s.Settings)
	if err := settings.Merge(confmap.NewFromStringMap(over)); err != nil {
		return nil, err
	}
	if err := settings.Unmarshal(config); err != nil {
		return nil, fmt.Errorf("%s: %w", s.ID, err)
	}
	return config, nil
}
