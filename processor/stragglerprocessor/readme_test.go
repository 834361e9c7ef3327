// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadmeHasEveryKeyWithItsDefault reads the tables of the section
// Configuration.
func TestReadmeHasEveryKeyWithItsDefault(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(text), "\n## Configuration\n")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")

	documented := map[string]string{}
	inside := regexp.MustCompile("(?m)^(?:Section `(\\w+)`|Each of `(signals)`|\\| Key in `(\\w+)`)")
	row := regexp.MustCompile("^\\| (`[^|]+`) \\|([^|]*)\\|")
	quoted := regexp.MustCompile("`([^`]*)`")
	prefix := ""
	for line := range strings.Lines(section) {
		if m := inside.FindStringSubmatch(line); m != nil {
			prefix = m[1] + m[2] + m[3] + "::"
		}
		m := row.FindStringSubmatch(line)
		if m == nil || prefix == "signals::" {
			continue
		}
		keys, defaults := quoted.FindAllStringSubmatch(m[1], -1), quoted.FindAllStringSubmatch(m[2], -1)
		first, _, nested := strings.Cut(keys[0][1], "::")
		for i, k := range keys {
			key := k[1]
			if nested && i > 0 {
				key = first + "::" + key
			}
			value := ""
			if len(defaults) == len(keys) {
				value = defaults[i][1]
			}
			documented[prefix+key] = value
		}
	}

	described := func(v reflect.Value, text string) bool {
		switch x := v.Interface().(type) {
		case time.Duration:
			d, err := time.ParseDuration(text)
			return err == nil && d == x
		case string, int, float64:
			return text == fmt.Sprint(x)
		default:
			return true // a list or a map
		}
	}
	keys(reflect.ValueOf(createDefaultConfig()).Elem(), "", func(key string, v reflect.Value) {
		text, ok := documented[key]
		if assert.True(t, ok, "no row for %s", key) && (v.Kind() != reflect.String || v.Len() > 0) {
			assert.True(t, described(v, text), "the default of %s is %v, not %q", key, v, text)
		}
		delete(documented, key)
	})
	assert.Empty(t, documented, "keys that there are not")
}

// keys visits the keys of a configuration, as they are written in a mistake.
func keys(v reflect.Value, prefix string, visit func(string, reflect.Value)) {
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("mapstructure")
		if key == "" || key == "-" {
			continue
		}
		if f := v.Field(i); key == ",squash" {
			keys(f, prefix, visit)
		} else if f.Kind() == reflect.Struct {
			keys(f, prefix+key+"::", visit)
		} else {
			visit(prefix+key, f)
		}
	}
}
