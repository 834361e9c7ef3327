// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"slices"
	"strings"
)

// JoinAttributes puts attributes, such as `error.type=corrected`, into the one
// text that Sample has of them, in their order. Pair makes them.
func JoinAttributes(pairs []string) string {
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// Pair returns an attribute for JoinAttributes.
func Pair(key, value string) string {
	if strings.ContainsAny(key, `=,\`) {
		key = keyEscapes.Replace(key)
	}
	if strings.ContainsAny(value, `,\`) {
		value = valueEscapes.Replace(value)
	}
	return key + "=" + value
}

// A backslash is before each character that would end a key or a value, and
// before a backslash.
var (
	keyEscapes   = strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`)
	valueEscapes = strings.NewReplacer(`\`, `\\`, ",", `\,`)
)

// SplitAttributes returns the attributes that JoinAttributes put together, nil
// for an empty text.
func SplitAttributes(text string) map[string]string {
	if text == "" {
		return nil
	}
	out := map[string]string{}
	var key string
	var part strings.Builder
	inValue := false
	next := func() string {
		defer part.Reset()
		return part.String()
	}
	end := func() {
		if inValue {
			out[key] = next()
		} else {
			out[next()] = ""
		}
		inValue = false
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && strings.IndexByte(`\,=`, text[i+1]) >= 0:
			i++
			part.WriteByte(text[i])
		case c == '=' && !inValue:
			key, inValue = next(), true
		case c == ',':
			end()
		default:
			part.WriteByte(c)
		}
	}
	end()
	return out
}
