// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
)

// offsetVariable is added to each port that is listened on, for more than one collector on a machine.
const offsetVariable = "GPU_COLLECTOR_PORT_OFFSET"

// mover adds the offset to ports.
type mover struct {
	offset  int
	changes map[string]any
	errs    []error
}

func (m *mover) port(key string, port int) int {
	if port == 0 { // any that is free
		return 0
	}
	port += m.offset
	if port < 1 || port > 65535 {
		m.errs = append(m.errs, fmt.Errorf("%s is %d: the port of `%s` would be %d, and must be 1 to 65535", offsetVariable, m.offset, key, port))
	}
	return port
}

// movePorts adds the offset to the ports that the configuration listens on, defaults too. An
// exporter stays at its address, unless that is a receiver of this very process.
func movePorts(conf *confmap.Conf, names service, used []usedComponent, factories otelcol.Factories) error {
	text := os.Getenv(offsetVariable)
	offset, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		return fmt.Errorf("%s is %q: it must be a whole number, such as 100", offsetVariable, text)
	}
	if offset == 0 {
		return nil
	}
	m := &mover{offset: offset, changes: map[string]any{}}
	receivers, moved := map[string]component.ID{}, map[string]string{}
	for _, u := range used {
		whole := confmap.New()
		if !u.listens() || whole.Marshal(u.config) != nil {
			continue
		}
		endpoints(u.key(), whole.ToStringMap(), func(key, endpoint string) {
			host, service, _ := net.SplitHostPort(endpoint) // checked before
			if port, err := net.LookupPort("tcp", service); err == nil {
				moved[endpoint] = net.JoinHostPort(host, strconv.Itoa(m.port(key, port)))
				m.changes[key], receivers[endpoint] = moved[endpoint], u.id
			}
		})
	}
	own := map[string]string{} // endpoints by keys of exporters
	for _, u := range used {
		if u.section == "exporters" && !u.listens() {
			endpoints(u.key(), u.settings, func(key, endpoint string) {
				own[key] = endpoint
				if names.feeds(receivers[endpoint], u.id) { // That would be a loop: it is another process's.
					delete(moved, endpoint)
				}
			})
		}
	}
	for key, endpoint := range own {
		if to, is := moved[endpoint]; is {
			m.changes[key] = to
		}
	}
	telemetry := confmap.New()
	if err := telemetry.Marshal(factories.Telemetry.CreateDefaultConfig()); err != nil {
		return fmt.Errorf("`service::telemetry`: %w", err)
	}
	m.readers(cmp.Or(conf.Get(readersKey), telemetry.Get("metrics::readers")))
	return errors.Join(append(m.errs, conf.Merge(confmap.NewFromStringMap(m.changes)))...)
}

// readers moves where the collector's own metrics are served.
func (m *mover) readers(all any) {
	readers, _ := all.([]any)
	for i, reader := range readers {
		settings, _ := reader.(map[string]any)
		for key := range strings.SplitSeq(serverKey, confmap.KeyDelimiter) {
			settings, _ = settings[key].(map[string]any)
		}
		if port, err := strconv.Atoi(fmt.Sprint(settings["port"])); err == nil { // the others push
			settings["port"] = m.port(fmt.Sprintf("%s::%d::%s::port", readersKey, i, serverKey), port)
		}
	}
	m.changes[readersKey] = readers
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
