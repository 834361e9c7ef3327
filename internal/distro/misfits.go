// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
)

var number = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// learn reads the names of a configuration, and returns the misfits among what the service uses.
func (k *known) learn(conf *confmap.Conf, extensions []component.ID, used []usedComponent, factories otelcol.Factories) (errs []error) {
	*k = known{keys: map[string]string{}, extensions: extensions}
	for section, kind := range kindsOf(factories) {
		configured, _ := conf.Get(section).(map[string]any)
		for id, settings := range configured {
			name, _, _ := strings.Cut(id, "/")
			if kind[name] == nil {
				continue
			}
			k.ids = append(k.ids, id)
			at := section + confmap.KeyDelimiter + id
			err := k.misfits(at, reflect.TypeOf(kind[name].CreateDefaultConfig()), settings)
			if slices.ContainsFunc(used, func(u usedComponent) bool { return u.key() == at }) {
				errs = append(errs, err)
			}
		}
	}
	const telemetry = "service::telemetry"
	return append(errs, k.misfits(telemetry, reflect.TypeOf(factories.Telemetry.CreateDefaultConfig()), conf.Get(telemetry)))
}

// misfits are the settings that the Collector would take and that cannot be meant: a duration
// without a unit is nanoseconds, and an extension that is not there fails only at the start.
func (k *known) misfits(at string, t reflect.Type, value any) error {
	var errs []error
	switch t = bare(t); {
	case t == reflect.TypeFor[time.Duration]():
		text := fmt.Sprint(value)
		if _, err := time.ParseDuration(text); err != nil && value != nil {
			if number.MatchString(text) {
				return fmt.Errorf("`%s` is %s: a duration needs a unit, such as %[2]ss", at, text)
			}
			return fmt.Errorf("`%s` is %q: a duration has a unit of ns, us, ms, s, m or h, such as 10s; a week is 168h", at, text)
		}
	case t == reflect.TypeFor[component.ID]():
		isIt := func(id component.ID) bool { return id.String() == value }
		if value != nil && value != "" && !slices.ContainsFunc(k.extensions, isIt) {
			return fmt.Errorf("`%s` names %q, which `service::extensions` does not list", at, value)
		}
	case t.Kind() == reflect.Struct:
		settings, _ := value.(map[string]any)
		fields := settingsOf(t)
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			if f := fields[key]; f != nil {
				errs = append(errs, k.misfits(at+confmap.KeyDelimiter+key, f, settings[key]))
			} else {
				k.keys[key] = hint(key, slices.Sorted(maps.Keys(fields)))
			}
		}
	case t.Kind() == reflect.Map:
		settings, _ := value.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(settings)) {
			errs = append(errs, k.misfits(at+confmap.KeyDelimiter+key, t.Elem(), settings[key]))
		}
	case t.Kind() == reflect.Slice:
		list, _ := value.([]any)
		for i, v := range list {
			errs = append(errs, k.misfits(at+confmap.KeyDelimiter+strconv.Itoa(i), t.Elem(), v))
		}
	}
	return errors.Join(errs...)
}

// bare is a type without pointers, and without the configoptional.Optional around it.
func bare(t reflect.Type) reflect.Type {
	for {
		switch {
		case t.Kind() == reflect.Pointer:
			t = t.Elem()
		case strings.HasSuffix(t.PkgPath(), "/configoptional") && t.Kind() == reflect.Struct:
			t = t.Field(0).Type
		default:
			return t
		}
	}
}

// settingsOf are the types of a struct's settings, by their keys.
func settingsOf(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	for f := range t.Fields() {
		key, option, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		switch inner := bare(f.Type); {
		case strings.Contains(option, "squash") && inner.Kind() == reflect.Struct:
			maps.Copy(known, settingsOf(inner))
		case key != "" && key != "-":
			known[key] = f.Type
		}
	}
	return known
}
