// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// template is text with columns in braces: "dp{dp_rank}-pp{pp_rank}". A brace
// itself is written twice.
type template []templatePart

type templatePart struct {
	literal string
	name    string
	column  int
}

// CheckTemplate reports what is wrong with the form of a template.
func CheckTemplate(text string) error {
	_, err := parseTemplate(text)
	return err
}

func parseTemplate(text string) (template, error) {
	var t template
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			t = append(t, templatePart{literal: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case (c == '{' || c == '}') && i+1 < len(text) && text[i+1] == c:
			literal.WriteByte(c)
			i++
		case c == '{':
			end := strings.IndexAny(text[i+1:], "{}")
			if end < 0 || text[i+1+end] == '{' {
				return nil, fmt.Errorf("template %q has a `{` that is not closed; write `{{` for a brace", text)
			}
			name := text[i+1 : i+1+end]
			if strings.TrimSpace(name) == "" {
				return nil, fmt.Errorf("template %q has no column name between `{` and `}`", text)
			}
			flush()
			t = append(t, templatePart{name: name})
			i += end + 1
		case c == '}':
			return nil, fmt.Errorf("template %q has a `}` that closes nothing; write `}}` for a brace", text)
		default:
			literal.WriteByte(c)
		}
	}
	flush()
	return t, nil
}

func (t template) bind(h header) error {
	var errs []error
	for i := range t {
		if t[i].name == "" {
			continue
		}
		var err error
		t[i].column, err = h.column(t[i].name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (t template) constant() bool {
	for i := range t {
		if t[i].name != "" {
			return false
		}
	}
	return true
}

// render appends the text for a row to dst.
func (t template) render(dst []byte, fields [][]byte) []byte {
	for i := range t {
		if t[i].name == "" {
			dst = append(dst, t[i].literal...)
		} else {
			dst = append(dst, bytes.TrimSpace(fields[t[i].column])...)
		}
	}
	return dst
}
