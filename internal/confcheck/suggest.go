// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// DidYouMean is a question about the known word that is nearest to a misspelt one, empty
// where none is near: at most a third of its letters differ.
func DidYouMean(word string, known []string) string {
	best, least := "", len(word)/3+1
	for _, k := range known {
		if d := distance(word, k); d > 0 && d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}

// distance is that of Levenshtein (1966): letters to insert, drop or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// The Collector's own words about names that it does not know.
var (
	invalidKeys = regexp.MustCompile(`has invalid keys: ([^\n]+)`)
	unknownType = regexp.MustCompile(`unknown type: "([^"]+)" for id: "[^"]*" \(valid values: \[([^\]]*)\]\)`)
	notHere     = regexp.MustCompile(`references (\w+) "([^"]+)" which is not configured`)
)

// Suggest adds to an error of the Collector which known name each unknown one is near to.
// keys are those of all settings, ids those of the components that are configured.
func Suggest(text string, keys, ids []string) string {
	text = invalidKeys.ReplaceAllStringFunc(text, func(found string) string {
		for key := range strings.SplitSeq(invalidKeys.FindStringSubmatch(found)[1], ", ") {
			found += DidYouMean(key, keys)
		}
		return found
	})
	text = unknownType.ReplaceAllStringFunc(text, func(found string) string {
		m := unknownType.FindStringSubmatch(found)
		return found + DidYouMean(m[1], strings.Fields(m[2]))
	})
	return notHere.ReplaceAllStringFunc(text, func(found string) string {
		return found + DidYouMean(notHere.FindStringSubmatch(found)[2], ids)
	})
}

// Keys are the names of all settings of configurations and of what is in them.
func Keys(configs ...any) []string {
	seen := map[reflect.Type]bool{}
	var keys []string
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
			t = t.Elem()
		}
		if t == nil || t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for f := range t.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("mapstructure"), ","); name != "" && name != "-" {
				keys = append(keys, name)
			}
			add(f.Type)
		}
	}
	for _, c := range configs {
		add(reflect.TypeOf(c))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
