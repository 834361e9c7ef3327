// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/extension/expositionextension"
	"github.com/gpu-collector/gpu-collector/extension/fleetviewextension"
	"github.com/gpu-collector/gpu-collector/extension/thresholdextension"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver"
)

const module = "github.com/gpu-collector/gpu-collector/"

type described struct {
	dir     string
	factory component.Factory
}

var components = []described{
	{"receiver/nvmlreceiver", nvmlreceiver.NewFactory()},
	{"receiver/ncclreceiver", ncclreceiver.NewFactory()},
	{"receiver/csvreplayreceiver", csvreplayreceiver.NewFactory()},
	{"receiver/fleetotlpreceiver", fleetotlpreceiver.NewFactory()},
	{"processor/stragglerprocessor", stragglerprocessor.NewFactory()},
	{"processor/diffprocessor", diffprocessor.NewFactory()},
	{"exporter/fleetviewexporter", fleetviewexporter.NewFactory()},
	{"extension/expositionextension", expositionextension.NewFactory()},
	{"extension/fleetviewextension", fleetviewextension.NewFactory()},
	{"extension/thresholdextension", thresholdextension.NewFactory()},
}

// reference returns the configuration reference of the module at root: each key of each
// component, with the code's default or type. The meaning of a key comes from the field's
// comment, or in short from the component's README.
func reference(root string) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(`<!-- Written by make generate from the Config structs. DO NOT EDIT. -->
# Configuration reference

Every key of this module's components, with its default, or its *type* where the default is nothing. A ` + "`::`" + ` stands between a section and its key, and ″ repeats the meaning above. The READMEs have the details; the Collector and contrib document their own components. ` + "`validate`" + ` tells what is wrong with a configuration.

` + "`nvml` and `nccl` also have `metrics::NAME::enabled` and `resource_attributes::NAME::enabled`" + `; documentation.md beside the README lists the names.
`)
	for i, c := range components {
		head := ", " // of a line for each class
		if class := path.Dir(c.dir); i == 0 || class != path.Dir(components[i-1].dir) {
			head = "\n- " + class + ": "
		}
		fmt.Fprintf(&out, "%s[`%s`](#%s-%s)", head, c.factory.Type(), path.Dir(c.dir), c.factory.Type())
	}
	out.WriteString("\n")
	var errs []error
	for _, c := range components {
		w := &writer{root: root, comments: map[string]map[string]string{}, sections: map[reflect.Type]string{}}
		if err := w.readme(c.dir); err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "\n## %s `%s`\n\n[README](../%s/README.md)\n", path.Dir(c.dir), c.factory.Type(), c.dir)
		v := reflect.ValueOf(c.factory.CreateDefaultConfig()).Elem()
		w.section(v, "")
		if w.out.Len() > 0 {
			out.WriteString("\n")
		}
		out.Write(w.out.Bytes())
		for _, err := range w.errs {
			errs = append(errs, fmt.Errorf("%s: %w", c.dir, err))
		}
	}
	return out.Bytes(), errors.Join(errs...)
}

type writer struct {
	root     string
	rows     map[string]string            // README's sentence by key
	comments map[string]map[string]string // by struct and field
	out      bytes.Buffer
	empty    map[string]string       // defaults as it writes them, by key
	sections map[reflect.Type]string // first key of a list's or map's entries, by their type
	last     string                  // the meaning in the line before
	errs     []error
}

var tableOf = regexp.MustCompile("^(?:Section|Each of) `([a-z_]+)`")

var keyInCell = regexp.MustCompile("`([a-z0-9_:*<>.\\[\\]]+)`")

// readme takes the tables whose first column is keys.
func (w *writer) readme(dir string) error {
	data, err := os.ReadFile(filepath.Join(w.root, dir, "README.md"))
	if err != nil {
		return err
	}
	w.rows, w.empty = map[string]string{}, map[string]string{}
	table := "" // what comes before the keys of the table at hand
	for line := range strings.Lines(string(data)) {
		switch m := tableOf.FindStringSubmatch(line); {
		case m != nil && m[1] == "signals":
			table = "signals::NAME::"
		case m != nil:
			table = m[1] + "::"
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| `") || len(cells) < 2 {
			continue
		}
		section := ""
		for _, m := range keyInCell.FindAllStringSubmatch(cells[0], -1) {
			// `headers::cluster`, `::node` and `split::interval`, `window` are of one
			// section each.
			key := strings.TrimPrefix(m[1], "::")
			if i := strings.LastIndex(key, "::"); i >= 0 {
				section = key[:i+2]
			} else {
				key = section + key
			}
			key = table + key
			if _, known := w.rows[key]; !known {
				if len(cells) > 2 {
					w.empty[key] = strings.TrimSpace(cells[1])
				}
				w.rows[key] = strings.TrimLeft(strings.TrimSpace(cells[len(cells)-1]), "| ")
			}
		}
	}
	return nil
}

// keyed has the keys of a section in place of the names of its fields.
func keyed(t reflect.Type, comment string) string {
	for f := range t.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("mapstructure"), ","); tag != "" {
			comment = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(comment, "`"+tag+"`")
		}
	}
	return comment
}

func (w *writer) section(v reflect.Value, prefix string) {
	t := v.Type()
	shared := ""
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		if strings.Contains(options, "squash") {
			if f.Type.Kind() == reflect.Struct {
				if list, ok := strings.CutSuffix(prefix, "[]::"); ok {
					w.sections[f.Type] = list
				}
				w.section(v.Field(i), prefix)
			}
			continue
		}
		if tag == "" || tag == "-" || !f.IsExported() {
			continue
		}
		key := prefix + tag
		if strings.HasSuffix(f.Type.PkgPath(), "/internal/metadata") {
			continue // the head of the page has them
		}
		comment := w.comment(t, f.Name)
		// Neighbours share a comment that names them all.
		if comment == "" && regexp.MustCompile(`\b`+f.Name+`\b`).MatchString(shared) {
			comment = shared
		}
		shared = cmp.Or(comment, shared)
		sentence := cmp.Or(short(w.rows[key]), keyed(t, comment)) // first the one for users
		value := v.Field(i)
		if value.Kind() == reflect.Struct && ours(value.Type()) {
			w.section(value, key+"::")
			continue
		}
		if sentence == "" {
			w.errs = append(w.errs, fmt.Errorf("`%s` has neither a comment at its field %s nor a row in the README", key, f.Name))
		}
		byDefault := standard(value)
		if means := w.empty[key]; byDefault == nothing && means != "" && !strings.HasPrefix(means, "see ") {
			byDefault = means
		}
		if byDefault == "" || byDefault == nothing {
			byDefault = "*" + kind(f.Type) + "*"
		}
		entry := f.Type
		if k := entry.Kind(); k == reflect.Slice || k == reflect.Map {
			entry = entry.Elem()
		}
		listed := entry != f.Type && entry.Kind() == reflect.Struct && ours(entry)
		first, again := w.sections[entry]
		if again = again && listed; again {
			sentence = strings.TrimSuffix(sentence, ".") + "; keys as of `" + first + "`"
		}
		meaning := line(sentence)
		if meaning == w.last {
			meaning = "″"
		} else {
			w.last = meaning
		}
		fmt.Fprintf(&w.out, "- `%s` %s: %s\n", key, byDefault, meaning)
		if listed && !again {
			mark := map[reflect.Kind]string{reflect.Slice: "[]", reflect.Map: "::NAME"}[f.Type.Kind()]
			w.sections[entry] = key
			w.section(reflect.New(entry).Elem(), key+mark+"::")
		}
	}
}

func ours(t reflect.Type) bool { return strings.HasPrefix(t.PkgPath(), module) }

var sentences = regexp.MustCompile(`\. +`)

// short is a cell of the README without its details: the first sentence, and those that
// begin with a value, such as what 0 means. What leads elsewhere in the README is left out.
func short(row string) string {
	row = elsewhere.ReplaceAllString(row, "")
	parts := sentences.Split(strings.TrimSuffix(row, "."), -1)
	kept := parts[:1]
	for _, p := range parts[1:] {
		if aValue.MatchString(p) {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, ". ")
}

var aValue = regexp.MustCompile("^(?:`|[01] |Empty|At |By default|Required)")

var elsewhere = regexp.MustCompile(`[;,.:]? (?:[Ss]ee|and) (?:below|\[[^\]]+\]\(#[^)]*\))`)

// line keeps a sentence on its line, without links that do not hold from docs/.
func line(s string) string {
	s = strings.TrimSuffix(strings.Join(strings.Fields(s), " "), ".")
	return regexp.MustCompile(`\[([^\]]+)\]\([#.][^)]*\)`).ReplaceAllString(s, "$1")
}

func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[component.ID](), t == reflect.TypeFor[*component.ID]():
		return "component"
	case strings.Contains(t.String(), "confighttp.ServerConfig"):
		return "confighttp server"
	case strings.Contains(t.String(), "confighttp.ClientConfig"):
		return "confighttp client"
	case t.Kind() == reflect.Pointer:
		return kind(t.Elem())
	case t.Kind() == reflect.Slice:
		return "list of " + kind(t.Elem())
	case t.Kind() == reflect.Map:
		return "map of " + kind(t.Elem())
	}
	return cmp.Or(kinds[t.Kind()], "integer")
}

var kinds = map[reflect.Kind]string{reflect.Struct: "section", reflect.String: "text", reflect.Float64: "number", reflect.Bool: "flag"}

// nothing is a list without an entry, unless the README's default explains it.
const nothing = "none"

// standard is a default as YAML has it.
func standard(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case component.ID:
		return "`" + x.String() + "`"
	case configoptional.Optional[confighttp.ServerConfig]:
		return standard(reflect.ValueOf(*x.GetOrInsertDefault()))
	case confighttp.ServerConfig: // where it listens, as far as its section has it
		at := x.NetAddr.Endpoint
		if at == "" {
			return ""
		}
		return fmt.Sprintf("`endpoint: %s`, `write_timeout: %s`", at, x.WriteTimeout)
	}
	s := fmt.Sprint(v.Interface())
	switch v.Kind() {
	case reflect.Pointer, reflect.Struct:
		return ""
	case reflect.Slice, reflect.Map:
		if v.Len() == 0 || v.Type().Elem().Kind() == reflect.Struct {
			return nothing
		}
		s = strings.ReplaceAll(s, " ", ", ")
	case reflect.Float64:
		if !strings.Contains(s, ".") {
			s += ".0" // not an integer
		}
	}
	if v.Type() == reflect.TypeFor[time.Duration]() {
		s = zeros.ReplaceAllString(s, "$1")
	}
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// zeros end a duration, as in 10m0s.
var zeros = regexp.MustCompile(`([hm])(?:0m)?0s$`)

// comment returns the source's comment on a struct's field.
func (w *writer) comment(t reflect.Type, field string) string {
	name := t.PkgPath() + "." + t.Name()
	if w.comments[name] == nil {
		found := map[string]string{}
		w.comments[name] = found
		dir := filepath.Join(w.root, strings.TrimPrefix(t.PkgPath(), strings.TrimSuffix(module, "/")))
		files, _ := filepath.Glob(filepath.Join(dir, "*.go")) // none of another module
		for _, file := range files {
			src, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				w.errs = append(w.errs, err)
				continue
			}
			ast.Inspect(src, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok || spec.Name.Name != t.Name() {
					return true
				}
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, id := range f.Names {
							found[id.Name] = strings.TrimSpace(f.Doc.Text() + " " + f.Comment.Text())
						}
					}
				}
				return false
			})
		}
	}
	return w.comments[name][field]
}
