// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// jsonFormat answers in JSON even where a number has no form there.
var jsonFormat = huma.Format{Marshal: encodeJSON, Unmarshal: huma.DefaultJSONFormat.Unmarshal}

// encodeJSON writes an answer; v points to it. It leaves out the numbers that
// JSON cannot say. A sum of finite numbers may be infinite, and one odd node must
// not take the answer from everybody. An encoder that fails has written nothing.
func encodeJSON(w io.Writer, v any) error {
	err := huma.DefaultJSONFormat.Marshal(w, v)
	if unsayable := (*json.UnsupportedValueError)(nil); errors.As(err, &unsayable) {
		makeSayable(reflect.ValueOf(v))
		return huma.DefaultJSONFormat.Marshal(w, v)
	}
	return err
}

// marshal is encodeJSON for a part of the stream.
func marshal[T any](v T) ([]byte, error) {
	text, err := json.Marshal(v)
	if err == nil {
		return text, nil
	}
	var b bytes.Buffer
	err = encodeJSON(&b, &v)
	return bytes.TrimSpace(b.Bytes()), err
}

// makeSayable takes the numbers that JSON cannot say out of an answer. An answer
// points to numbers of the views, which stay as they are. Of a number that every
// answer has, infinity becomes the greatest number.
func makeSayable(v reflect.Value) {
	switch v.Kind() {
	case reflect.Float64:
		if x := v.Float(); math.IsNaN(x) {
			v.SetZero()
		} else {
			v.SetFloat(min(max(x, -math.MaxFloat64), math.MaxFloat64))
		}
	case reflect.Pointer:
		if x, ok := v.Interface().(*float64); !ok {
			makeSayable(v.Elem())
		} else if x != nil && (math.IsNaN(*x) || math.IsInf(*x, 0)) {
			v.SetZero()
		}
	case reflect.Slice:
		for i := range v.Len() {
			makeSayable(v.Index(i))
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() {
				makeSayable(value)
			}
		}
	}
}
