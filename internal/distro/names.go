// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
)

// wrongNames are the components that the distribution does not have or, where it has them all,
// those that the service lists and nobody configured. The Collector would name one at a time.
func wrongNames(conf *confmap.Conf, names service, factories otelcol.Factories) (errs []error) {
	kinds, configured := kindsOf(factories), map[string][]string{}
	for _, section := range slices.Sorted(maps.Keys(kinds)) {
		settings, _ := conf.Get(section).(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			var id component.ID
			if id.UnmarshalText([]byte(key)) != nil {
				continue // The Collector says what a name may be.
			}
			configured[section] = append(configured[section], id.String())
			if kind := id.Type().String(); kinds[section][kind] == nil {
				errs = append(errs, fmt.Errorf("`%s` has %q, which is no %s of this distribution%s",
					section, id, strings.TrimSuffix(section, "s"), hint(kind, slices.Sorted(maps.Keys(kinds[section])))))
			}
		}
	}
	if errs != nil {
		return errs // The service may list the right names of these.
	}
	check := func(key string, ids []component.ID, among ...string) {
		for _, id := range ids {
			if !slices.Contains(among, id.String()) {
				errs = append(errs, fmt.Errorf("`service::%s` lists %q, which is not configured%s", key, id, hint(id.String(), among)))
			}
		}
	}
	check("extensions", names.Extensions, configured["extensions"]...)
	for _, name := range slices.Sorted(maps.Keys(names.Pipelines)) {
		for _, section := range [...]string{"receivers", "processors", "exporters"} {
			among := configured[section]
			if section != "processors" {
				among = slices.Concat(among, configured["connectors"])
			}
			check("pipelines::"+name+"::"+section, names.Pipelines[name][section], among...)
		}
	}
	return errs
}

// hint asks about the nearest name: at most a third of the letters differ.
func hint(name string, among []string) string {
	best, least := "", len(name)/3+1
	for _, word := range among {
		if d := distance(name, word); d < least {
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// distance is that of Levenshtein (1966), but that two letters which change places count once.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			if i == 0 || j == 0 {
				d[i][j] = i + j
				continue
			}
			d[i][j] = min(d[i-1][j], d[i][j-1], d[i-1][j-1]) + 1
			if a[i-1] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
