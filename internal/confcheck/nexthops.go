// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// NextHop is a host that an exporter of a pipeline sends to, by its name.
type NextHop struct {
	// Key is the configuration's, Host the name without scheme and port.
	Key, Host string
}

// NextHops returns the hosts behind the `endpoint` of the OTLP exporters that some pipeline
// has. Addresses have nothing to look up.
func NextHops(conf map[string]any) []NextHop {
	used := map[string]bool{}
	service, _ := conf["service"].(map[string]any)
	pipelines, _ := service["pipelines"].(map[string]any)
	for _, p := range pipelines {
		pipeline, _ := p.(map[string]any)
		list, _ := pipeline["exporters"].([]any)
		for _, id := range list {
			if id, ok := id.(string); ok {
				used[id] = true
			}
		}
	}
	var hops []NextHop
	exporters, _ := conf["exporters"].(map[string]any)
	for _, id := range slices.Sorted(maps.Keys(exporters)) {
		settings, _ := exporters[id].(map[string]any)
		endpoint, _ := settings["endpoint"].(string)
		if !used[id] || !strings.HasPrefix(id, "otlp") {
			continue
		}
		host := hostOf(endpoint)
		if _, err := netip.ParseAddr(host); err == nil || host == "" {
			continue
		}
		hops = append(hops, NextHop{Key: "exporters::" + id + "::endpoint", Host: host})
	}
	return hops
}

// hostOf an endpoint: host:port, a URL, or gRPC's dns:///host:port.
func hostOf(endpoint string) string {
	endpoint = strings.TrimPrefix(endpoint, "dns:///")
	if strings.Contains(endpoint, "://") {
		u, err := url.Parse(endpoint)
		if err != nil {
			return ""
		}
		return u.Hostname()
	}
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return ""
	}
	return host
}
