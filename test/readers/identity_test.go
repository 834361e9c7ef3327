// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// identities are the attributes that say who a resource is, as constants and as text.
var identities = map[string]bool{
	"AttrClusterName": true, "AttrHostName": true, "AttrHostID": true, "AttrK8sNodeName": true,
	`"k8s.cluster.name"`: true, `"host.name"`: true, `"host.id"`: true, `"k8s.node.name"`: true,
}

// mayName are the files that may say an identity's attribute in another way than
// to write it into a resource, and why.
var mayName = map[string]string{
	"internal/gpusemconv/semconv.go":        "has the names",
	"internal/reading/catalogue.go":         "a point may name the node that it is about",
	"internal/reading/identity/identity.go": "is the room",
	"receiver/nvmlreceiver/resource.go":     "writes its own node's, where no configuration does",
	"receiver/csvreplayreceiver/config.go":  "checks that the configuration writes them",
	"receiver/csvreplayreceiver/table.go":   "writes them from columns",
}

// TestOneRoomReadsIdentities: who a resource is, is read in internal/reading/identity
// alone, or two readers would take one push for two nodes.
func TestOneRoomReadsIdentities(t *testing.T) {
	used := map[string]bool{}
	eachFile(t, []string{"cmd", "exporter", "extension", "internal", "pkg", "processor", "receiver"}, func(path string, file *ast.File) {
		for _, attribute := range reads(file) {
			used[path] = true
			assert.NotEmpty(t, mayName[path], "%s reads %s: ask internal/reading/identity who a resource is", path, attribute)
		}
	})
	for path := range mayName {
		assert.True(t, used[path], "%s names none: take it off the list", path)
	}
}

// eachFile parses the files that are neither tests nor generated.
func eachFile(t *testing.T, dirs []string, take func(path string, file *ast.File)) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, d fs.DirEntry, err error) error {
			name := filepath.Base(path)
			if err != nil {
				return err
			}
			if d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "generated_") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			path, err = filepath.Rel("../..", path)
			require.NoError(t, err)
			take(path, file)
			return nil
		})
		require.NoError(t, err)
	}
}

// reads are the identities that a file names but does not write: a call that
// puts an attribute has its name as an argument.
func reads(file *ast.File) (found []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if strings.HasPrefix(strings.ToLower(called(n)), "put") {
				return false
			}
		case *ast.Ident:
			if identities[n.Name] {
				found = append(found, n.Name)
			}
		case *ast.BasicLit:
			if identities[n.Value] {
				found = append(found, n.Value)
			}
		}
		return true
	})
	return found
}

func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	default:
		return ""
	}
}

func TestReads(t *testing.T) {
	for source, want := range map[string][]string{
		`attrs.PutStr(gpusemconv.AttrHostName, n)`:              nil,
		`putText(attrs, "host.name", n)`:                        nil,
		`v, ok := attrs.Get(gpusemconv.AttrHostName)`:           {"AttrHostName"},
		`switch key { case "k8s.cluster.name": c = v }`:         {`"k8s.cluster.name"`},
		`if key == semconv.AttrK8sNodeName { n = v }`:           {"AttrK8sNodeName"},
		`for _, k := range []string{"host.id"} { n = read(k) }`: {`"host.id"`},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\nfunc f() {\n"+source+"\n}", 0)
		require.NoError(t, err)
		assert.Equal(t, want, reads(file), source)
	}
}
