// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// jsonFormat answers in JSON even where a number has no form there.
var jsonFormat = huma.Format{Marshal: encodeJSON, Unmarshal: huma.DefaultJSONFormat.Unmarshal}

// encodeJSON leaves out the numbers that JSON cannot say: a sum of finite numbers
// may be infinite, and one odd node must not take the answer from everybody. The
// encoder writes nothing before it has failed.
func encodeJSON(w io.Writer, v any) error {
	err := huma.DefaultJSONFormat.Marshal(w, v)
	if unsayable := (*json.UnsupportedValueError)(nil); errors.As(err, &unsayable) {
		tree, _ := sayable(reflect.ValueOf(v))
		return huma.DefaultJSONFormat.Marshal(w, tree)
	}
	return err
}

// marshal is encodeJSON for a part of the stream.
func marshal(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err == nil {
		return text, nil
	}
	var b bytes.Buffer
	err = encodeJSON(&b, v)
	return bytes.TrimSpace(b.Bytes()), err
}

// sayable copies a value without the numbers that JSON cannot say, and is false
// for such a number.
func sayable(v reflect.Value) (any, bool) {
	if !v.IsValid() {
		return nil, true
	}
	switch v.Interface().(type) {
	case json.Marshaler, encoding.TextMarshaler:
		return v.Interface(), true
	}
	switch v.Kind() {
	case reflect.Float64, reflect.Float32:
		return v.Interface(), !math.IsNaN(v.Float()) && !math.IsInf(v.Float(), 0)
	case reflect.Pointer, reflect.Interface:
		return sayable(v.Elem())
	case reflect.Slice:
		if v.IsNil() {
			return nil, true
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i], _ = sayable(v.Index(i))
		}
		return list, true
	case reflect.Map:
		object := map[string]any{}
		for key, value := range v.Seq2() {
			if x, ok := sayable(value); ok {
				object[key.String()] = x
			}
		}
		return object, true
	case reflect.Struct:
		object := map[string]any{}
		members(v, object)
		return object, true
	default:
		return v.Interface(), true
	}
}

func members(v reflect.Value, object map[string]any) {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous && name == "":
			members(value, object)
			continue
		case !field.IsExported() || name == "-" || strings.Contains(options, "omitempty") && empty(value):
			continue
		}
		if x, ok := sayable(value); ok {
			object[name] = x
		}
	}
}

func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}
