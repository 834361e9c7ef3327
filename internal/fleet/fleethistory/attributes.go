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
	for more := true; more; {
		var pair string
		pair, text, more = cut(text, ',')
		key, value, _ := cut(pair, '=')
		out[unescaped.Replace(key)] = unescaped.Replace(value)
	}
	return out
}

var unescaped = strings.NewReplacer(`\\`, `\`, `\,`, ",", `\=`, "=")

// cut is strings.Cut at the first separator without a backslash before it.
func cut(text string, at byte) (before, after string, found bool) {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case at:
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}
