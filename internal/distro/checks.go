// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/listenaddress"
)

// checks is a converter, since only a converter sees the configuration of `validate` and of
// the start. It changes ports alone, where a variable asks for that.
type checks struct {
	factories func() (otelcol.Factories, error)
	to        io.Writer
	known     *known
}

// service is the part of a configuration that names components.
type service struct {
	Extensions []component.ID                       `mapstructure:"extensions"`
	Pipelines  map[string]map[string][]component.ID `mapstructure:"pipelines"`
}

// usedComponent is a component that the service names.
type usedComponent struct {
	section string
	id      component.ID
	// config is the settings over the defaults, and the defaults alone where they do not fit.
	config component.Config
	// settings are as written, without the defaults.
	settings map[string]any
}

// Convert implements confmap.Converter. Mistakes of others' keys are for the Collector to tell.
func (c checks) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := c.factories()
	if err != nil {
		return err
	}
	kinds := kindsOf(factories)
	c.known.ids = c.known.ids[:0]
	for section, kind := range kinds {
		configured, _ := conf.Get(section).(map[string]any)
		for id := range configured {
			if name, _, _ := strings.Cut(id, "/"); kind[name] != nil {
				c.known.ids = append(c.known.ids, id)
			}
		}
	}
	var names struct {
		Service service `mapstructure:"service"`
	}
	if conf.Unmarshal(&names, confmap.WithIgnoreUnused()) != nil {
		return nil
	}
	used := usedComponents(conf, names.Service, kinds)
	memoryWarning(used, c.to)
	errs := []error{telemetryAddresses(conf)}
	extensions, _ := conf.Get("extensions").(map[string]any)
	for _, id := range names.Service.Extensions {
		if _, configured := extensions[id.String()]; !configured {
			errs = append(errs, fmt.Errorf("`service::extensions` lists %q, which is not configured", id))
		}
	}
	for _, u := range used {
		errs = append(errs, misfits(u.key(), reflect.TypeOf(u.config), u.settings, names.Service.Extensions))
		if u.listens() {
			endpoints(u.key(), u.settings, func(key, endpoint string) { errs = append(errs, keyed(key, listenaddress.Check(endpoint))) })
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return movePorts(conf, names.Service, used, factories)
}

// kindsOf are the factories by section and by the name of their type.
func kindsOf(f otelcol.Factories) map[string]map[string]component.Factory {
	return map[string]map[string]component.Factory{
		"receivers": byName(f.Receivers), "processors": byName(f.Processors), "exporters": byName(f.Exporters),
		"connectors": byName(f.Connectors), "extensions": byName(f.Extensions),
	}
}

func byName[F component.Factory](factories map[component.Type]F) map[string]component.Factory {
	named := make(map[string]component.Factory, len(factories))
	for kind, factory := range factories {
		named[kind.String()] = factory
	}
	return named
}

func usedComponents(conf *confmap.Conf, names service, kinds map[string]map[string]component.Factory) []usedComponent {
	var used []usedComponent
	add := func(section string, ids []component.ID) {
		for _, id := range ids {
			known := func(u usedComponent) bool { return u.section == section && u.id == id }
			factory := kinds[section][id.Type().String()]
			settings, err := conf.Sub(section + confmap.KeyDelimiter + id.String())
			if factory == nil || err != nil || slices.ContainsFunc(used, known) {
				continue
			}
			config := factory.CreateDefaultConfig()
			if settings.Unmarshal(config) != nil {
				config = factory.CreateDefaultConfig()
			}
			used = append(used, usedComponent{section, id, config, settings.ToStringMap()})
		}
	}
	add("extensions", names.Extensions)
	for _, p := range names.Pipelines {
		for section, ids := range p {
			add(section, ids)
		}
		add("connectors", p["exporters"])
	}
	return used
}

func (u usedComponent) key() string { return u.section + confmap.KeyDelimiter + u.id.String() }

// listens tells whether the endpoints of the component are its own, and not where it connects to.
func (u usedComponent) listens() bool {
	return u.section == "receivers" || u.section == "extensions" || u.id.Type().String() == "prometheus"
}

// endpoints gives the addresses in a component's settings and their keys, wherever they are,
// but for URLs and sockets.
func endpoints(path string, settings map[string]any, give func(key, endpoint string)) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		at := path + confmap.KeyDelimiter + key
		switch v := settings[key].(type) {
		case map[string]any:
			endpoints(at, v, give)
		case string:
			transport, other := settings["transport"].(string)
			if key == "endpoint" && !strings.Contains(v, "://") && (!other || strings.HasPrefix(transport, "tcp")) {
				give(at, v)
			}
		}
	}
}

// Where the collector's own metrics are served: a list, and the key in each of its entries.
const (
	readersKey = "service::telemetry::metrics::readers"
	serverKey  = "pull::exporter::prometheus"
)

// telemetryAddresses checks where the collector's own metrics are served.
func telemetryAddresses(conf *confmap.Conf) error {
	readers, _ := conf.Get(readersKey).([]any)
	var errs []error
	for i, reader := range readers {
		settings, _ := reader.(map[string]any)
		server, err := confmap.NewFromStringMap(settings).Sub(serverKey)
		if err == nil && server.IsSet("port") && server.IsSet("host") {
			errs = append(errs, keyed(fmt.Sprintf("%s::%d::%s", readersKey, i, serverKey),
				listenaddress.Check(net.JoinHostPort(fmt.Sprint(server.Get("host")), fmt.Sprint(server.Get("port"))))))
		}
	}
	return errors.Join(errs...)
}

func keyed(key string, err error) error {
	if err != nil {
		return fmt.Errorf("`%s` %w", key, err)
	}
	return nil
}
