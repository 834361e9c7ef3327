// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confignet"
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

// usedComponent is one that the service names, with its settings over the defaults.
type usedComponent struct {
	section string
	id      component.ID
	config  component.Config
}

// Convert implements confmap.Converter. Mistakes of others' keys are for the Collector to tell.
func (c checks) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := c.factories()
	if err != nil {
		return err
	}
	used := usedComponents(conf, factories)
	memoryWarning(used, c.to)
	errs := []error{telemetryAddresses(conf)}
	for _, u := range used {
		errs = append(errs, addresses(u.section+"::"+u.id.String(), reflect.ValueOf(u.config)))
	}
	return errors.Join(errs...)
}

func usedComponents(conf *confmap.Conf, factories otelcol.Factories) []usedComponent {
	var names struct {
		Service struct {
			Extensions []component.ID `mapstructure:"extensions"`
			Pipelines  map[string]struct {
				Receivers  []component.ID `mapstructure:"receivers"`
				Processors []component.ID `mapstructure:"processors"`
				Exporters  []component.ID `mapstructure:"exporters"`
			} `mapstructure:"pipelines"`
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
			used = append(used, usedComponent{section, id, config})
		}
	}
	for _, id := range names.Service.Extensions {
		add("extensions", id, factories.Extensions[id.Type()])
	}
	for _, p := range names.Service.Pipelines {
		for _, id := range p.Receivers {
			add("receivers", id, factories.Receivers[id.Type()])
		}
		for _, id := range p.Processors {
			add("processors", id, factories.Processors[id.Type()])
		}
		for _, id := range p.Exporters {
			add("exporters", id, factories.Exporters[id.Type()])
		}
	}
	return used
}

// addresses checks the endpoints that servers listen on, wherever they are in a component's
// settings.
func addresses(path string, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return addresses(path, v.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	t := v.Type()
	if t == reflect.TypeFor[confignet.AddrConfig]() || t == reflect.TypeFor[confignet.TCPAddrConfig]() {
		transport := v.FieldByName("Transport")
		if endpoint := v.FieldByName("Endpoint").String(); endpoint != "" && (!transport.IsValid() || strings.HasPrefix(transport.String(), "tcp")) {
			return keyed(path+"::endpoint", listenaddress.Check(endpoint))
		}
		return nil
	}
	var errs []error
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("mapstructure"), ",")
		optional := strings.HasSuffix(t.PkgPath(), "/configoptional") && t.Field(i).Name == "value"
		switch {
		case key != "":
			errs = append(errs, addresses(path+"::"+key, v.Field(i)))
		case t.Field(i).IsExported() || optional:
			errs = append(errs, addresses(path, v.Field(i)))
		}
	}
	return errors.Join(errs...)
}

// telemetryAddresses checks where the collector's own metrics are served.
func telemetryAddresses(conf *confmap.Conf) error {
	readers, _ := conf.Get("service::telemetry::metrics::readers").([]any)
	var errs []error
	for i, reader := range readers {
		settings, _ := reader.(map[string]any)
		server, err := confmap.NewFromStringMap(settings).Sub("pull::exporter::prometheus")
		if err == nil && server.IsSet("port") && server.IsSet("host") {
			errs = append(errs, keyed(fmt.Sprintf("service::telemetry::metrics::readers::%d::pull::exporter::prometheus", i),
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
