// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/collector/otelcol"
	collector "go.opentelemetry.io/collector/service"
)

const didYouMean = ": did you mean "

// known is the one place that suggests a name, for the errors of all commands. The errors
// themselves are the Collector's and the components'.
type known struct {
	factories func() (otelcol.Factories, error)
	// ids of the components that the configuration has.
	ids []string
}

// values are those of settings whose errors do not list them.
var values = []string{
	"metrics", "logs", "traces", "gzip", "zlib", "deflate", "snappy", "zstd", "lz4", "none",
	"basic", "normal", "detailed", "debug", "info", "warn", "error",
}

var (
	invalidKeys = regexp.MustCompile(`'([^'[]*)[^']*' has invalid keys: (.+)$`)
	quoted      = regexp.MustCompile(`"([A-Za-z][\w/-]*)"`)
	words       = regexp.MustCompile(`[A-Za-z][\w/-]*`)
)

// suggested is an error with the right names for wrong ones.
type suggested struct {
	error
	text string
}

func (s suggested) Error() string { return s.text }
func (s suggested) Unwrap() error { return s.error }

// speak has a command and those below it suggest.
func (k *known) speak(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		k.speak(sub)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if !errors.As(err, &unknown) {
			return err
		}
		var flags []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
		return suggested{err, err.Error() + hint("--"+unknown.GetSpecifiedName(), flags)}
	})
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return suggested{err, k.suggest(err.Error())}
			}
			return nil
		}
	}
}

// suggest adds to each line of an error what its unknown names are near to: a key to those of
// the place where it stands, another word to the other words of the line, which often lists
// what may stand there, and to the components.
func (k *known) suggest(text string) string {
	lines := strings.Split(text, "\n")
	var keys map[string][]string
	for i, line := range lines {
		if strings.Contains(line, didYouMean) {
			continue
		}
		if m := invalidKeys.FindStringSubmatch(line); m != nil {
			if keys == nil {
				keys = k.keys()
			}
			place := m[1]
			if keys[place] == nil {
				place = place[strings.LastIndexByte(place, '.')+1:]
			}
			for key := range strings.SplitSeq(m[2], ", ") {
				lines[i] += hint(key, keys[place])
			}
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			others := words.FindAllString(strings.ReplaceAll(line, m[0], ""), -1)
			if h := hint(m[1], slices.Concat(others, k.ids, values)); h != "" {
				lines[i] += h
				break
			}
		}
	}
	return strings.Join(lines, "\n")
}

// hint asks about the nearest name: at most a third of the letters differ.
func hint(name string, among []string) string {
	best, least := "", len(name)/3+1
	for _, word := range among {
		switch d := distance(name, word); {
		case d == 0:
			return ""
		case d < least:
			best, least = word, d
		}
	}
	if best == "" {
		return ""
	}
	return didYouMean + best + "?"
}

// distance is that of Levenshtein (1966), but that two letters which change places count once.
func distance(a, b string) int {
	row, before := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}

// keys are those of each part of a configuration, by the name of its Go type and by the key
// that it stands at: the Collector's errors have either.
func (k *known) keys() map[string][]string {
	factories, err := k.factories()
	if err != nil {
		return nil
	}
	all := map[string][]string{}
	kinds := kindsOf(factories)
	for section, kind := range kinds {
		all["otelcol.configSettings"] = append(all["otelcol.configSettings"], section, "service")
		for _, factory := range kind {
			collectKeys(all, "", reflect.TypeOf(factory.CreateDefaultConfig()))
		}
	}
	collectKeys(all, "service", reflect.TypeFor[collector.Config]())
	collectKeys(all, "telemetry", reflect.TypeOf(factories.Telemetry.CreateDefaultConfig()))
	return all
}

func collectKeys(all map[string][]string, at string, t reflect.Type) {
	t = bare(t)
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = bare(t.Elem())
	}
	if t.Kind() != reflect.Struct {
		return
	}
	_, seen := all[t.String()]
	for key, f := range settingsOf(t) {
		if !seen {
			all[t.String()] = append(all[t.String()], key)
			collectKeys(all, key, f)
		}
		all[at] = append(all[at], key)
	}
}
