// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/listenaddress"
)

// checks is a converter that changes nothing, since only a converter sees the configuration
// of `validate` and of the start.
type checks struct {
	factories func() (otelcol.Factories, error)
	to        io.Writer
}

// usedComponent is a component that the service names. Its config is the settings over the defaults.
type usedComponent struct {
	section string
	id      component.ID
	config  component.Config
	// settings are as written, without the defaults.
	settings map[string]any
}

// Convert implements confmap.Converter. Mistakes of others' keys are for the Collector to tell.
func (c checks) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := c.factories()
	if err != nil {
		return err
	}
	used := usedComponents(conf, factories)
	memoryWarning(used, c.to)
	var errs []error
	for _, l := range listened(conf, used) {
		errs = append(errs, keyed(l.Key, listenaddress.Check(l.Address)))
	}
	return errors.Join(errs...)
}

// Listen is an address that a configuration listens on, and its key.
type Listen struct{ Key, Address string }

func listened(conf *confmap.Conf, used []usedComponent) []Listen {
	all := telemetryAddresses(conf)
	for _, u := range used {
		if u.section == "receivers" || u.section == "extensions" || u.id.Type().String() == "prometheus" {
			all = append(all, addresses(u.section+confmap.KeyDelimiter+u.id.String(), u.settings)...)
		}
	}
	return all
}

func usedComponents(conf *confmap.Conf, factories otelcol.Factories) []usedComponent {
	var names struct {
		Service struct {
			Extensions []component.ID                       `mapstructure:"extensions"`
			Pipelines  map[string]map[string][]component.ID `mapstructure:"pipelines"`
		} `mapstructure:"service"`
	}
	if conf.Unmarshal(&names, confmap.WithIgnoreUnused()) != nil {
		return nil
	}
	var used []usedComponent
	add := func(section string, id component.ID, factory component.Factory) {
		known := func(u usedComponent) bool { return u.section == section && u.id == id }
		if factory == nil || slices.ContainsFunc(used, known) {
			return
		}
		config := factory.CreateDefaultConfig()
		settings, err := conf.Sub(section + confmap.KeyDelimiter + id.String())
		if err == nil && settings.Unmarshal(config) == nil {
			used = append(used, usedComponent{section, id, config, settings.ToStringMap()})
		}
	}
	for _, id := range names.Service.Extensions {
		add("extensions", id, factories.Extensions[id.Type()])
	}
	for _, p := range names.Service.Pipelines {
		for _, id := range p["receivers"] {
			add("receivers", id, factories.Receivers[id.Type()])
		}
		for _, id := range p["processors"] {
			add("processors", id, factories.Processors[id.Type()])
		}
		for _, id := range p["exporters"] {
			add("exporters", id, factories.Exporters[id.Type()])
		}
	}
	return used
}

// addresses are the endpoints in a component's settings, wherever they are: those of
// receivers and extensions are listened on, but for URLs.
func addresses(path string, settings map[string]any) (all []Listen) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		at := path + confmap.KeyDelimiter + key
		switch v := settings[key].(type) {
		case map[string]any:
			all = append(all, addresses(at, v)...)
		case string:
			transport, other := settings["transport"].(string)
			if key == "endpoint" && !strings.Contains(v, "://") && (!other || strings.HasPrefix(transport, "tcp")) {
				all = append(all, Listen{at, v})
			}
		}
	}
	return all
}

// telemetryAddresses are where the collector's own metrics are served.
func telemetryAddresses(conf *confmap.Conf) (all []Listen) {
	readers, _ := conf.Get("service::telemetry::metrics::readers").([]any)
	for i, reader := range readers {
		settings, _ := reader.(map[string]any)
		server, err := confmap.NewFromStringMap(settings).Sub("pull::exporter::prometheus")
		if err == nil && server.IsSet("port") && server.IsSet("host") {
			all = append(all, Listen{
				fmt.Sprintf("service::telemetry::metrics::readers::%d::pull::exporter::prometheus", i),
				net.JoinHostPort(fmt.Sprint(server.Get("host")), fmt.Sprint(server.Get("port"))),
			})
		}
	}
	return all
}

func keyed(key string, err error) error {
	if err != nil {
		return fmt.Errorf("`%s` %w", key, err)
	}
	return nil
}
