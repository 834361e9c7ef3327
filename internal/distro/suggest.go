// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/collector/component"
)

const didYouMean = ": did you mean "

// known is the one place that suggests a name, for the errors of all commands. The errors
// themselves are the Collector's and the components'.
type known struct {
	ids  []string          // of the components that the configuration has
	keys map[string]string // the hints for its unknown keys
	// extensions are those that the service has.
	extensions []component.ID
}

// vocabulary is of the process's configuration.
var vocabulary = &known{}

// values are those that errors do not list.
var values = []string{
	"metrics", "logs", "traces", "gzip", "zlib", "deflate", "snappy", "zstd", "lz4", "none",
	"basic", "normal", "detailed", "debug", "info", "warn", "error",
	"receivers", "processors", "exporters", "connectors", "extensions", "service", "pipelines", "telemetry",
}

var (
	invalidKeys = regexp.MustCompile(` has invalid keys: (.+)$`)
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
	own := cmd.FlagErrorFunc()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown, is := errors.AsType[*pflag.NotExistError](err); is {
			var flags []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, "--"+f.Name) })
			err = suggested{err, err.Error() + hint("--"+unknown.GetSpecifiedName(), flags)}
		}
		return own(cmd, err)
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
	for i, line := range lines {
		if strings.Contains(line, didYouMean) {
			continue
		}
		if m := invalidKeys.FindStringSubmatch(line); m != nil {
			for key := range strings.SplitSeq(m[1], ", ") {
				lines[i] += cmp.Or(k.keys[key], hint(key, values))
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
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			if i == 0 || j == 0 {
				d[i][j] = i + j
				continue
			}
			d[i][j] = min(d[i-1][j], d[i][j-1], d[i-1][j-1]) + 1
			if a[i-1] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-1][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
