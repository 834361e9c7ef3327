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

// tiers have many values in common, and the table shows these once.
var tiers = []string{"agent", "shard", "gateway", "cluster"}

// valueRow is a row of the table.
type valueRow struct{ name, value, meaning string }

// valueTable is that of the chart's values which have a comment. A row in bold begins a
// section. Values that several tiers have alike come last.
func valueTable(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	var top, sections []valueRow
	for pair := range slices.Chunk(doc.Content[0].Content, 2) {
		if key, value := pair[0], pair[1]; section(value) {
			sections = append(sections, valueRow{"**" + key.Value + "**", "", comment(key)})
			sections = append(sections, rows(key.Value, value)...)
		} else {
			top = append(top, row(key.Value, key, value))
		}
	}
	// Where the tiers' defaults differ, the table has none.
	count, defaults := map[valueRow]int{}, map[valueRow]string{}
	for _, l := range sections {
		if common, ok := ofTiers(l); ok {
			if count[common]++; count[common] > 1 && defaults[common] != l.value {
				defaults[common] = ""
				continue
			}
			defaults[common] = l.value
		}
	}
	var b strings.Builder
	b.WriteString("\n| Value | Default | Meaning |\n|---|---|---|\n")
	var shared []valueRow
	for _, l := range append(top, sections...) {
		if common, ok := ofTiers(l); ok && count[common] > 1 {
			if l.meaning != "" && !slices.Contains(shared, common) {
				shared = append(shared, common)
			}
		} else if l.meaning != "" {
			l.write(&b)
		}
	}
	valueRow{"**TIER**", "", "agent, shard, gateway and cluster, where they have the value."}.write(&b)
	for _, l := range shared {
		l.value = defaults[l]
		l.write(&b)
	}
	b.WriteString("\n")
	return b.String(), nil
}

// ofTiers is a tier's row without its default, under a name that all tiers have in common.
func ofTiers(l valueRow) (valueRow, bool) {
	tier, rest, _ := strings.Cut(strings.Trim(l.name, "`"), ".")
	l.name, l.value = "`TIER."+rest+"`", ""
	return l, slices.Contains(tiers, tier)
}

func (l valueRow) write(b *strings.Builder) {
	fmt.Fprintf(b, "| %s | %s | %s |\n", l.name, l.value, l.meaning)
}

func section(n *yaml.Node) bool { return n.Kind == yaml.MappingNode && len(n.Content) > 0 }

func rows(path string, n *yaml.Node) (lines []valueRow) {
	for pair := range slices.Chunk(n.Content, 2) {
		key, value := pair[0], pair[1]
		name := path + "." + key.Value
		if section(value) && !slices.Contains(whole, key.Value) {
			lines = append(lines, valueRow{"`" + name + "`", "", comment(key)})
			lines = append(lines, rows(name, value)...)
			continue
		}
		lines = append(lines, row(name, key, value))
	}
	return lines
}

func row(name string, key, value *yaml.Node) valueRow {
	var v any
	if err := value.Decode(&v); err != nil {
		log.Fatal(name, ": ", err)
	}
	text, err := json.Marshal(v)
	if err != nil {
		log.Fatal(name, ": ", err)
	}
	return valueRow{"`" + name + "`", "`" + string(text) + "`", comment(key)}
}

// comment is the text above a key, in one line.
func comment(key *yaml.Node) string {
	var lines []string
	for text := range strings.Lines(key.HeadComment) {
		lines = append(lines, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text), "#")))
	}
	return strings.ReplaceAll(strings.Join(lines, " "), "|", "\\|")
}
