// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// template is text with columns in braces: "dp{dp_rank}-pp{pp_rank}".
type template []templatePart

// templatePart is text and the column behind it, if any.
type templatePart struct{ text, column string }

func parseTemplate(text string) (template, error) {
	var t template
	for rest := text; rest != ""; {
		literal, after, isColumn := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return nil, fmt.Errorf("template %q has a `}` that closes nothing", text)
		}
		p := templatePart{text: literal}
		rest = ""
		if isColumn {
			var closed bool
			p.column, rest, closed = strings.Cut(after, "}")
			switch {
			case !closed || strings.Contains(p.column, "{"):
				return nil, fmt.Errorf("template %q has a `{` that is not closed", text)
			case strings.TrimSpace(p.column) == "":
				return nil, fmt.Errorf("template %q has no column name between `{` and `}`", text)
			}
		}
		t = append(t, p)
	}
	return t, nil
}

// attr is an attribute whose value is a template.
type attr struct {
	key   string
	value template
}

// parseAttributes reads templates by attribute key.
func parseAttributes(config map[string]string) ([]attr, error) {
	var attrs []attr
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(config)) {
		t, err := parseTemplate(config[key])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		attrs = append(attrs, attr{key, t})
	}
	return attrs, errors.Join(errs...)
}
