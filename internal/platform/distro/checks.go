// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/node/ownnode"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

// checks is a converter, since only a converter sees the configuration of `validate` and of
// the start. It changes nothing.
type checks struct {
	factories func() (otelcol.Factories, error)
	to        io.Writer
}

// service is the part of a configuration that names components.
type service struct {
	Extensions []component.ID                       `mapstructure:"extensions"`
	Pipelines  map[string]map[string][]component.ID `mapstructure:"pipelines"`
}

// Convert implements confmap.Converter. Keys and values are for the Collector to check.
func (c checks) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := c.factories()
	if err != nil {
		return err
	}
	used, names := usedComponents(conf, factories)
	warn(used, c.to)
	errs := append(wrongTables(used, names), unlistedOTLP(conf, names))
	for _, l := range listens(conf, used, factories) {
		if err := checkAddress(l.Address); err != nil {
			errs = append(errs, fmt.Errorf("`%s` %w", l.Key, err))
		}
	}
	return errors.Join(errs...)
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

// usedComponents are in the order of their sections and names.
func usedComponents(conf *confmap.Conf, factories otelcol.Factories) (used []Setup, names service) {
	kinds := kindsOf(factories)
	if part, err := conf.Sub("service"); err != nil || part.Unmarshal(&names, confmap.WithIgnoreUnused()) != nil {
		names = service{} // The Collector reports the reason.
	}
	add := func(section string, ids []component.ID) {
		for _, id := range ids {
			known := func(s Setup) bool { return s.Section == section && s.ID == id }
			factory := kinds[section][id.Type().String()]
			settings, err := conf.Sub(section + confmap.KeyDelimiter + id.String())
			if factory == nil || err != nil || slices.ContainsFunc(used, known) {
				continue
			}
			config, whole := factory.CreateDefaultConfig(), confmap.New()
			if settings.Unmarshal(config) != nil {
				config, whole = factory.CreateDefaultConfig(), settings
			} else if whole.Marshal(config) != nil {
				whole = settings
			}
			used = append(used, Setup{section, id, settings.ToStringMap(), whole.ToStringMap(), config})
		}
	}
	add("extensions", names.Extensions)
	for _, p := range names.Pipelines {
		for section, ids := range p {
			add(section, ids)
		}
		add("connectors", p["exporters"])
	}
	slices.SortFunc(used, func(a, b Setup) int {
		return cmp.Or(cmp.Compare(a.Section, b.Section), cmp.Compare(a.ID.String(), b.ID.String()))
	})
	return used, names
}

// endpoints are the addresses in a component's settings, wherever they are, but for URLs and
// sockets.
func endpoints(path string, settings map[string]any) (all []Listen) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		at := path + confmap.KeyDelimiter + key
		switch v := settings[key].(type) {
		case map[string]any:
			all = append(all, endpoints(at, v)...)
		case string:
			transport, other := settings["transport"].(string)
			if key == "endpoint" && !strings.Contains(v, "://") && (!other || strings.HasPrefix(transport, "tcp")) {
				all = append(all, Listen{Key: at, Address: v})
			}
		}
	}
	return all
}

// Listen is an address that a configuration listens on, and its key.
type Listen struct {
	Key, Address string
	telemetry    bool // of the collector's own metrics
}

// listens are all addresses that are listened on, also by default.
func listens(conf *confmap.Conf, used []Setup, factories otelcol.Factories) (all []Listen) {
	for _, u := range used {
		// The endpoints of the others are where they connect to.
		if u.Section == "receivers" || u.Section == "extensions" || u.ID.Type().String() == "prometheus" {
			all = append(all, endpoints(u.Section+confmap.KeyDelimiter+u.ID.String(), u.whole)...)
		}
	}
	own := confmap.New()
	if conf.Get("service::telemetry::metrics::level") == "none" || own.Marshal(factories.Telemetry.CreateDefaultConfig()) != nil {
		return all
	}
	readers, _ := cmp.Or(conf.Get("service::telemetry::metrics::readers"), own.Get("metrics::readers")).([]any)
	for i, reader := range readers {
		server, _ := reader.(map[string]any)
		for _, key := range [...]string{"pull", "exporter", "prometheus"} {
			server, _ = server[key].(map[string]any)
		}
		if server["port"] != nil { // the others push
			host, _ := server["host"].(string)
			all = append(all, Listen{
				Key:     fmt.Sprintf("service::telemetry::metrics::readers::%d::pull::exporter::prometheus", i),
				Address: net.JoinHostPort(host, fmt.Sprint(server["port"])), telemetry: true,
			})
		}
	}
	return all
}

// hostName is not only digits and dots, which would be an address with a slip.
var hostName = regexp.MustCompile(`^[\w.-]*[A-Za-z_-][\w.-]*$`)

// checkAddress returns what is wrong with an endpoint, for behind the name of its key.
func checkAddress(endpoint string) error {
	host, port, err := net.SplitHostPort(endpoint)
	_, noAddress := netip.ParseAddr(host)
	_, noPort := net.LookupPort("tcp", port) // takes a service's name too, and nothing for 0
	if err == nil && port != "" && noPort == nil && (host == "" || noAddress == nil || hostName.MatchString(host)) {
		return nil
	}
	return fmt.Errorf("is %q, must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317", endpoint)
}

// warn logs what is valid and seldom meant.
func warn(used []Setup, to io.Writer) {
	memory, nodes := map[string]int64{}, map[string][]string{}
	var texts []string
	for _, c := range used {
		key := c.Section + confmap.KeyDelimiter + c.ID.String()
		if holder, ok := c.Parsed.(memorybudget.Holder); ok {
			memory[c.ID.String()] = holder.MemoryBytes()
		}
		if own, ok := c.Parsed.(ownnode.Namer); ok {
			_, name := own.OwnNode()
			nodes[name] = append(nodes[name], key)
		}
		if open, ok := c.Parsed.(serverguard.Opener); ok {
			texts = append(texts, serverguard.Warning(key, open))
		}
	}
	for _, text := range append(texts, memorybudget.Warning(memory), ownnode.Warning(nodes)) {
		if text != "" {
			_, _ = fmt.Fprintln(to, "warning:", text)
		}
	}
}
