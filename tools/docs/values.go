// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// whole are objects that are shown as one value, not key by key.
var whole = []string{"resources", "securityContext", "podSecurityContext", "probes"}

// valueTables are those of the chart's values and their comments: one for the values of
// the top, and one for each section.
func valueTables(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	root := doc.Content[0]
	var b strings.Builder
	const heading = "\n| Value | Default | Meaning |\n|---|---|---|\n"
	b.WriteString(heading)
	for pair := range slices.Chunk(root.Content, 2) {
		if key, value := pair[0], pair[1]; !section(value) {
			row(&b, key.Value, key, value)
		}
	}
	for pair := range slices.Chunk(root.Content, 2) {
		if key, value := pair[0], pair[1]; section(value) {
			fmt.Fprintf(&b, "\n### %s\n", key.Value)
			if text := comment(key); text != "" {
				b.WriteString("\n" + text + "\n")
			}
			b.WriteString(heading)
			rows(&b, key.Value, value)
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

func section(n *yaml.Node) bool { return n.Kind == yaml.MappingNode && len(n.Content) > 0 }

func rows(b *strings.Builder, path string, n *yaml.Node) {
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], pair[1]
		name := path + "." + key.Value
		if section(value) && !slices.Contains(whole, key.Value) {
			if comment(key) != "" {
				fmt.Fprintf(b, "| `%s` | | %s |\n", name, comment(key))
			}
			rows(b, name, value)
			continue
		}
		row(b, name, key, value)
	}
}

func row(b *strings.Builder, name string, key, value *yaml.Node) {
	var v any
	if err := value.Decode(&v); err != nil {
		log.Fatal(name, ": ", err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		log.Fatal(name, ": ", err)
	}
	fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, text, comment(key))
}

// comment is the text above a key, in one line.
func comment(key *yaml.Node) string {
	var lines []string
	for line := range strings.Lines(key.HeadComment) {
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.ReplaceAll(strings.Join(lines, " "), "|", "\\|")
}
