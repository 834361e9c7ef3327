// SPDX-License-Identifier: Apache-2.0

// Package confcheck finds the mistakes in a configuration that the Collector takes for
// settings, or tells without saying what would be right.
package confcheck // import "github.com/gpu-collector/gpu-collector/internal/confcheck"

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Defaults returns the default configuration of a component, by the section of the
// configuration and its type; nil where there is none.
type Defaults func(section, kind string) any

// Check reports all mistakes of a whole configuration.
func Check(conf map[string]any, defaults Defaults) error {
	c := checker{extensions: names(conf["extensions"])}
	if service, ok := conf["service"].(map[string]any); ok {
		if list, ok := service["extensions"].([]any); ok {
			for _, item := range list {
				id := fmt.Sprint(item)
				c.started = append(c.started, id)
				if !slices.Contains(c.extensions, id) {
					c.errs = append(c.errs, fmt.Errorf("`service::extensions` lists %q, which is not among `extensions`%s", id, DidYouMean(id, c.extensions)))
				}
			}
		}
	}
	for _, section := range [...]string{"receivers", "processors", "exporters", "connectors", "extensions"} {
		components, _ := conf[section].(map[string]any)
		for _, id := range slices.Sorted(maps.Keys(components)) {
			kind, _, _ := strings.Cut(id, "/")
			c.walk(section+"::"+id, components[id], reflect.TypeOf(defaults(section, kind)))
		}
	}
	c.loops(conf)
	return errors.Join(c.errs...)
}

type checker struct {
	extensions, started []string
	errs                []error
}

func names(section any) []string {
	m, _ := section.(map[string]any)
	return slices.Sorted(maps.Keys(m))
}

var durationType = reflect.TypeFor[time.Duration]()

// walk looks at a value beside the type that it becomes, nil where that is not known.
func (c *checker) walk(path string, v any, t reflect.Type) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			at := path + "::" + key
			if key == "middlewares" {
				c.middlewares(at, v[key])
			}
			if text, ok := v[key].(string); ok && key == "endpoint" {
				c.endpoint(at, text)
			}
			c.walk(at, v[key], field(t, key))
		}
	case string:
		if _, err := strconv.ParseUint(v, 10, 32); err == nil && t == durationType && v != "0" {
			c.errs = append(c.errs, fmt.Errorf("`%s` is %q, which has no unit: %ss?", path, v, v))
		}
	case int:
		// The Collector takes it for nanoseconds.
		if t == durationType && v != 0 {
			c.errs = append(c.errs, fmt.Errorf("`%s` is %d, which has no unit: %ds?", path, v, v))
		}
	}
}

// field is the type behind a key of a structure or map.
func field(t reflect.Type, key string) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == nil:
		return nil
	case t.Kind() == reflect.Map:
		return t.Elem()
	case t.Kind() != reflect.Struct:
		return nil
	case strings.HasPrefix(t.Name(), "Optional["):
		// configoptional.Optional holds its value in one field of that type.
		for f := range t.Fields() {
			if f.Type.Kind() == reflect.Struct {
				return field(f.Type, key)
			}
		}
		return nil
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		if name == key {
			return f.Type
		}
		if strings.Contains(options, "squash") {
			if inner := field(f.Type, key); inner != nil {
				return inner
			}
		}
	}
	return nil
}

// middlewares are found by their ids, which only the start of a server looks up.
func (c *checker) middlewares(path string, v any) {
	list, _ := v.([]any)
	for _, item := range list {
		m, _ := item.(map[string]any)
		id, ok := m["id"].(string)
		switch {
		case !ok:
		case !slices.Contains(c.extensions, id):
			c.errs = append(c.errs, fmt.Errorf("`%s` names %q, which is not among `extensions`%s", path, id, DidYouMean(id, c.extensions)))
		case c.started != nil && !slices.Contains(c.started, id):
			c.errs = append(c.errs, fmt.Errorf("`%s` names %q, which `service::extensions` does not list", path, id))
		}
	}
}

// endpoint has a port, unless it is a URL, a path, or what another rule checks.
func (c *checker) endpoint(path, text string) {
	if text == "" || strings.ContainsAny(text, "/") {
		return
	}
	if _, _, err := net.SplitHostPort(text); err == nil {
		return
	}
	hint := text + ":PORT"
	if strings.HasPrefix(path, "exporters::otlp") {
		hint = text + ":4317"
		if strings.Contains(path, "::otlp_http") || strings.Contains(path, "::otlphttp") {
			hint = "http://" + text + ":4318"
		}
	}
	c.errs = append(c.errs, fmt.Errorf("`%s` is %q, which has no port: %s?", path, text, hint))
}
