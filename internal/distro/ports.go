// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
)

// offsetVariable is added to each port that is listened on, for more than one collector on a machine.
const offsetVariable = "GPU_COLLECTOR_PORT_OFFSET"

// movePorts adds the offset to the ports that the configuration listens on, defaults too. An
// exporter stays at its address, unless that is a receiver of this very process.
func movePorts(conf *confmap.Conf, names service, used []usedComponent, factories otelcol.Factories) error {
	text := os.Getenv(offsetVariable)
	if text == "" {
		return nil
	}
	offset, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%s is %q: it must be a whole number, such as 100", offsetVariable, text)
	}
	plus := func(key string, port int) (int, error) {
		if port == 0 { // any that is free
			return 0, nil
		}
		if port += offset; port < 1 || port > 65535 {
			return 0, fmt.Errorf("%s is %d: the port of `%s` would be %d, and must be 1 to 65535", offsetVariable, offset, key, port)
		}
		return port, nil
	}
	type listener struct {
		id component.ID
		to string
	}
	changes, moved := map[string]any{}, map[string]listener{}
	for _, u := range used {
		if !u.listens() {
			continue
		}
		whole := confmap.New()
		if err := whole.Marshal(u.config); err != nil {
			return fmt.Errorf("%s::%s: %w", u.section, u.id, err)
		}
		for key, endpoint := range endpoints(u.section+confmap.KeyDelimiter+u.id.String(), whole.ToStringMap()) {
			host, service, err := net.SplitHostPort(endpoint)
			if err != nil {
				continue
			}
			port, err := net.LookupPort("tcp", service)
			if err != nil {
				continue
			}
			if port, err = plus(key, port); err != nil {
				return err
			}
			to := net.JoinHostPort(host, strconv.Itoa(port))
			changes[key], moved[endpoint] = to, listener{u.id, to}
		}
	}
	own := map[string][]string{} // keys of exporters by the endpoint
	for _, u := range used {
		if u.section != "exporters" || u.listens() {
			continue
		}
		for key, endpoint := range endpoints("exporters"+confmap.KeyDelimiter+u.id.String(), u.settings) {
			l, listened := moved[endpoint]
			if !listened {
				continue
			}
			own[endpoint] = append(own[endpoint], key)
			if names.feeds(l.id, u.id) { // That would be a loop: it is another process's.
				delete(moved, endpoint)
			}
		}
	}
	for endpoint, l := range moved {
		for _, key := range own[endpoint] {
			changes[key] = l.to
		}
	}
	if changes[readersKey], err = movedReaders(conf, factories, plus); err != nil {
		return err
	}
	return conf.Merge(confmap.NewFromStringMap(changes))
}

// movedReaders are where the collector's own metrics are served, by default too.
func movedReaders(conf *confmap.Conf, factories otelcol.Factories, plus func(string, int) (int, error)) ([]any, error) {
	own := confmap.New()
	if err := own.Marshal(map[string]any{"service": map[string]any{"telemetry": factories.Telemetry.CreateDefaultConfig()}}); err != nil {
		return nil, fmt.Errorf("`%s`: %w", readersKey, err)
	}
	if conf.IsSet(readersKey) {
		own = conf
	}
	readers, _ := own.Get(readersKey).([]any)
	for i, reader := range readers {
		settings, _ := reader.(map[string]any)
		changed := confmap.NewFromStringMap(settings)
		port, err := strconv.Atoi(fmt.Sprint(changed.Get(serverKey + "::port")))
		if err != nil {
			continue // it pushes
		}
		if port, err = plus(fmt.Sprintf("%s::%d::%s::port", readersKey, i, serverKey), port); err != nil {
			return nil, err
		}
		if err := changed.Merge(confmap.NewFromStringMap(map[string]any{serverKey + "::port": port})); err != nil {
			return nil, err
		}
		readers[i] = changed.ToStringMap()
	}
	return readers, nil
}

// feeds tells whether what a receiver takes gets to an exporter, through connectors too.
func (s service) feeds(receiver, exporter component.ID) bool {
	reached := []component.ID{receiver}
	for i := 0; i < len(reached); i++ {
		for _, p := range s.Pipelines {
			if !slices.Contains(p["receivers"], reached[i]) {
				continue
			}
			for _, id := range p["exporters"] {
				if !slices.Contains(reached, id) {
					reached = append(reached, id)
				}
			}
		}
	}
	return slices.Contains(reached[1:], exporter)
}
