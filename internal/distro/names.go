// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
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
	if errs != nil {
		return errs
	}
	// Overlays of former versions configure otlp. Nothing would read their tls and auth.
	listed := map[string]bool{}
	for _, p := range names.Pipelines {
		for _, id := range p["receivers"] {
			listed[id.String()] = true
		}
	}
	if slices.Contains(configured["receivers"], "otlp") && !listed["otlp"] && listed["fleet_otlp"] {
		errs = append(errs, errors.New("`receivers` has \"otlp\", which no pipeline lists: give its settings to `fleet_otlp`, see docs/upgrading.md"))
	}
	return errs
}

// hint asks about the nearest name: at most half of the letters are wrong.
func hint(name string, among []string) string {
	best, least := "", len(name)/2+1
	for _, word := range among {
		if wrong := levenshtein.ComputeDistance(name, word); wrong < least {
			best, least = ": did you mean "+word+"?", wrong
		}
	}
	return best
}
