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

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
)

// offsetVariable is added to each port that is listened on, for more than one collector on a machine.
const offsetVariable = "GPU_COLLECTOR_PORT_OFFSET"

// movePorts adds the offset to the ports that the configuration listens on, but for those that
// are any that is free. An exporter stays at its address, unless that is a receiver of this
// very process.
func movePorts(conf *confmap.Conf, names service, used []usedComponent, all []Listen, readers []any) error {
	text := os.Getenv(offsetVariable)
	offset, err := strconv.Atoi(cmp.Or(text, "0"))
	if err != nil {
		return fmt.Errorf("%s is %q: it must be a whole number, such as 100", offsetVariable, text)
	}
	if offset == 0 {
		return nil
	}
	var errs []error
	changes, moved, receivers := map[string]any{readersKey: readers}, map[string]string{}, map[string]component.ID{}
	for _, l := range all {
		host, service, _ := net.SplitHostPort(l.Address) // checked before
		port, err := net.LookupPort("tcp", service)
		if err != nil || port == 0 {
			continue
		}
		if port += offset; port < 1 || port > 65535 {
			errs = append(errs, fmt.Errorf("%s is %d: the port of `%s` would be %d, and must be 1 to 65535", offsetVariable, offset, l.Key, port))
		}
		to := net.JoinHostPort(host, strconv.Itoa(port))
		if l.server != nil {
			l.server["port"] = port
		} else {
			changes[l.Key], moved[l.Address], receivers[l.Address] = to, to, l.of
		}
	}
	var own []Listen
	for _, u := range used {
		if u.section == "exporters" && !u.listens() {
			endpoints(u.key(), u.settings, func(key, endpoint string) { own = append(own, Listen{Key: key, Address: endpoint, of: u.id}) })
		}
	}
	for _, e := range own {
		for _, p := range names.Pipelines {
			if slices.Contains(p["receivers"], receivers[e.Address]) && slices.Contains(p["exporters"], e.of) {
				delete(moved, e.Address) // That would be a loop: it is another process's.
			}
		}
	}
	for _, e := range own {
		if to, is := moved[e.Address]; is {
			changes[e.Key] = to
		}
	}
	return errors.Join(append(errs, conf.Merge(confmap.NewFromStringMap(changes)))...)
}
