// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
)

// loops reports exporters that push to this Collector itself, so that what they send
// comes back to them: without end, and as fast as the machine can.
func (c *checker) loops(conf map[string]any) {
	service, _ := conf["service"].(map[string]any)
	pipelines, _ := service["pipelines"].(map[string]any)
	receivers, _ := conf["receivers"].(map[string]any)
	exporters, _ := conf["exporters"].(map[string]any)

	type edge struct{ to, exporter, endpoint, receiver string }
	edges := map[string][]edge{}
	for _, from := range slices.Sorted(maps.Keys(pipelines)) {
		for _, e := range list(pipelines[from], "exporters") {
			address := target(e, exporters[e])
			for _, to := range slices.Sorted(maps.Keys(pipelines)) {
				for _, r := range list(pipelines[to], "receivers") {
					switch {
					case e == r: // a connector
						edges[from] = append(edges[from], edge{to: to})
					case address != "" && signal(from) == signal(to) && slices.ContainsFunc(listens(r, receivers[r]), func(at string) bool { return sameAddress(at, address) }):
						edges[from] = append(edges[from], edge{to, e, address, r})
					}
				}
			}
		}
	}
	reaches := func(from, to string) bool {
		seen := map[string]bool{from: true}
		for next := []string{from}; len(next) > 0; next = next[1:] {
			if next[0] == to {
				return true
			}
			for _, e := range edges[next[0]] {
				if !seen[e.to] {
					seen[e.to] = true
					next = append(next, e.to)
				}
			}
		}
		return false
	}
	told := map[string]bool{}
	for _, from := range slices.Sorted(maps.Keys(edges)) {
		for _, e := range edges[from] {
			if e.exporter == "" || told[e.exporter] || !reaches(e.to, from) {
				continue
			}
			told[e.exporter] = true
			c.errs = append(c.errs, fmt.Errorf("`exporters::%s::endpoint` is %q, where `receivers::%s` of the same process listens: each push would come back to it. Name the gateway, or give the receiver another port", e.exporter, e.endpoint, e.receiver))
		}
	}
}

func list(pipeline any, key string) (ids []string) {
	m, _ := pipeline.(map[string]any)
	items, _ := m[key].([]any)
	for _, item := range items {
		ids = append(ids, fmt.Sprint(item))
	}
	return ids
}

// signal of a pipeline: metrics of "metrics/jobs".
func signal(pipeline string) string {
	kind, _, _ := strings.Cut(pipeline, "/")
	return kind
}

// target is host:port that an OTLP exporter pushes to, empty for others.
func target(id string, conf any) string {
	m, _ := conf.(map[string]any)
	text, _ := m["endpoint"].(string)
	if !strings.HasPrefix(id, "otlp") {
		return ""
	}
	if _, rest, ok := strings.Cut(text, "://"); ok { // http://host:port/path, dns:///host:port
		text, _, _ = strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	}
	return text
}

// listens are the host:port of an OTLP receiver.
func listens(id string, conf any) (at []string) {
	if !strings.HasPrefix(id, "otlp") {
		return nil
	}
	m, _ := conf.(map[string]any)
	protocols, _ := m["protocols"].(map[string]any)
	for protocol, port := range map[string]string{"grpc": "4317", "http": "4318"} {
		v, on := protocols[protocol]
		if !on {
			continue
		}
		settings, _ := v.(map[string]any)
		if text, ok := settings["endpoint"].(string); ok {
			at = append(at, text)
		} else {
			at = append(at, "localhost:"+port)
		}
	}
	return at
}

// sameAddress goes by the text, and by what is this machine for sure: no name is looked up.
func sameAddress(listener, target string) bool {
	lh, lp, err := net.SplitHostPort(listener)
	if err != nil {
		return false
	}
	th, tp, err := net.SplitHostPort(target)
	if err != nil || lp != tp || lp == "0" {
		return false
	}
	loopback := func(host string) bool { return host == "localhost" || net.ParseIP(host).IsLoopback() }
	all := func(host string) bool { return host == "" || net.ParseIP(host).IsUnspecified() }
	return lh == th || loopback(th) && (loopback(lh) || all(lh)) || all(th) && all(lh)
}
