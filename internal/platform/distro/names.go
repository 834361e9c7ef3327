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

	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
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

// wrongTables are the keys `table` that name no exposition of the service. The start would end
// at the first, and the process with it.
func wrongTables(used []Setup, names service) (errs []error) {
	var tables []string
	for _, id := range names.Extensions {
		if id.Type().String() == "exposition" {
			tables = append(tables, id.String())
		}
	}
	for _, u := range used {
		var id component.ID
		table, _ := u.whole["table"].(string)
		if kind := u.ID.Type().String(); kind != "diff" && kind != "fleet_otlp" || id.UnmarshalText([]byte(table)) != nil || slices.Contains(tables, id.String()) {
			continue // The Collector says what a name may be.
		}
		key := fmt.Sprintf("%s::%s::table", u.Section, u.ID)
		errs = append(errs, hostextension.Wrong(key, "exposition", id, slices.Contains(names.Extensions, id), tables))
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
