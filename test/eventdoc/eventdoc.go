// SPDX-License-Identifier: Apache-2.0

// Package eventdoc reads docs/events.md, so that tests can compare it with the
// events that are emitted.
package eventdoc // import "github.com/gpu-collector/gpu-collector/test/eventdoc"

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// row is a line of a table whose first cell is a name or several.
var row = regexp.MustCompile("^\\| (`[^|]*`) \\|")

var name = regexp.MustCompile("`([^`]+)`")

// Attributes returns the attributes that the file documents for an event,
// sorted: those of the tables of attributes below the heading that names it.
func Attributes(file, event string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	heading := "## `" + event + "`\n"
	_, section, ok := strings.Cut(string(text), heading)
	if !ok {
		return nil, fmt.Errorf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var found []string
	inside := false
	for line := range strings.Lines(section) {
		inside = strings.HasPrefix(line, "| Attribute |") || inside && strings.HasPrefix(line, "|")
		if !inside {
			continue
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for _, n := range name.FindAllStringSubmatch(m[1], -1) {
			found = append(found, n[1])
		}
	}
	slices.Sort(found)
	return found, nil
}
