// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

const bindingPath = "github.com/NVIDIA/go-nvml/pkg/nvml"

// TestGuard proves that methods of go-nvml, and functions that are called directly,
// are reached only through guarded, with their own entry of the table.
func TestGuard(t *testing.T) {
	methods := map[string]bool{}
	for _, i := range []reflect.Type{
		reflect.TypeFor[gonvml.Interface](), reflect.TypeFor[gonvml.Device](), reflect.TypeFor[gonvml.EventSet](),
	} {
		for m := range i.Methods() {
			methods[m.Name] = true
		}
	}
	// They call nothing in the library.
	delete(methods, "Extensions")

	names := functionNames(t)
	uses := map[string]int{}
	for name, file := range parsePackage(t) {
		if !importsBinding(file) {
			continue
		}
		checkGuarded(t, name, file, methods, names, uses)
	}
	for fn, f := range functions {
		assert.Positive(t, uses[f.method], "entry %d, %s, is not used", fn, f.method)
	}
}

// checkGuarded walks the file: inside guarded's call argument a selector of
// go-nvml has to be the one of the table; elsewhere there must be none.
func checkGuarded(t *testing.T, name string, file *ast.File, methods map[string]bool, names map[string]function, uses map[string]int) {
	t.Helper()
	var inside []function // entry of the enclosing guarded call
	var walk func(ast.Node)
	walk = func(root ast.Node) {
		ast.Inspect(root, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && calls(call, "guarded") {
				fn, ok := names[call.Args[1].(*ast.Ident).Name]
				require.True(t, ok, "%s: guarded is called with an entry that is not in the table", name)
				inside = append(inside, fn)
				walk(call.Args[2])
				inside = inside[:len(inside)-1]
				return false
			}
			if call, ok := n.(*ast.CallExpr); ok && calls(call, "direct") {
				fn := names[call.Args[1].(*ast.Ident).Name]
				assert.Contains(t, directly, fn, "%s: %s is not looked up", name, functions[fn].method)
				if assert.NotEmpty(t, inside, "%s: %s is called around the guard", name, functions[fn].method) {
					assert.Equal(t, inside[len(inside)-1], fn, "%s: guarded for another function", name)
					uses[functions[fn].method]++
				}
				return true
			}
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "gonvml" {
				assert.False(t, methods[sel.Sel.Name], "%s: gonvml.%s is called around the guard", name, sel.Sel.Name)
				return true
			}
			if !reachesRaw(sel.X) {
				return true
			}
			if assert.NotEmpty(t, inside, "%s: %s is called around the guard", name, sel.Sel.Name) {
				want := functions[inside[len(inside)-1]].method
				assert.Equal(t, want, sel.Sel.Name, "%s: guarded for %s", name, want)
				uses[want]++
			}
			return true
		})
	}
	walk(file)
}

// reachesRaw reports whether the expression is a go-nvml value: by convention,
// which the next check enforces, those live in fields named raw.
func reachesRaw(x ast.Expr) bool {
	sel, ok := x.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "raw"
}

// TestBindingValuesAreRaw proves that go-nvml's interfaces are held only in
// fields and variables named raw, or b.raw, which TestGuard watches.
func TestBindingValuesAreRaw(t *testing.T) {
	for name, file := range parsePackage(t) {
		if !importsBinding(file) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			field, ok := n.(*ast.Field)
			if !ok {
				return true
			}
			sel, ok := field.Type.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Interface", "Device", "EventSet"}, sel.Sel.Name) {
				return true
			}
			for _, ident := range field.Names {
				assert.Equal(t, "raw", ident.Name, "%s: a field or parameter holds go-nvml's %s", name, sel.Sel.Name)
			}
			return true
		})
	}
}

// TestNoThroughputSamples: nvmlDeviceGetPcieThroughput measures for 20 ms per
// direction and blocks as long (nvml.h). The bytes are fields 197 and 198.
func TestNoThroughputSamples(t *testing.T) {
	for _, f := range functions {
		assert.NotContains(t, f.method, "Throughput")
	}
	for name, file := range parsePackage(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				assert.NotContains(t, sel.Sel.Name, "PcieThroughput", name)
			}
			return true
		})
	}
}

// TestTable proves from go-nvml's source that each method ends in the symbols
// that the table names, so that an update of go-nvml cannot go unnoticed.
func TestTable(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", bindingPath).Output()
	require.NoError(t, err, "the module cache has the source of go-nvml")
	source := bindingSource(t, strings.TrimSpace(string(out)))
	for _, f := range functions {
		assert.ElementsMatch(t, source.symbols(t, f.method), f.symbols, f.method)
	}
}

type goSource struct {
	methods   map[string]*ast.FuncDecl // of library, nvmlDevice and their handlers
	functions map[string]*ast.FuncDecl
	versioned map[string][]string // variable -> the functions it may hold
}

func bindingSource(t *testing.T, dir string) goSource {
	t.Helper()
	s := goSource{methods: map[string]*ast.FuncDecl{}, functions: map[string]*ast.FuncDecl{}, versioned: map[string][]string{}}
	for _, name := range []string{"nvml.go", "lib.go", "init.go", "system.go", "device.go", "event_set.go", "gpm.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv == nil {
					s.functions[n.Name.Name] = n
				} else if receiver, ok := n.Recv.List[0].Type.(*ast.Ident); !ok || receiver.Name == "nvmlDevice" {
					s.methods[n.Name.Name] = n
				} else {
					s.methods[receiver.Name+"."+n.Name.Name] = n
				}
			case *ast.ValueSpec:
				for i := range n.Values {
					s.mayHold(n.Names[i], n.Values[i])
				}
			case *ast.AssignStmt:
				for i := range min(len(n.Lhs), len(n.Rhs)) {
					s.mayHold(n.Lhs[i], n.Rhs[i])
				}
			}
			return true
		})
	}
	return s
}

var versioned = regexp.MustCompile("^(nvml|deviceGet)[A-Z]")

func (s goSource) mayHold(left, right ast.Expr) {
	l, lok := left.(*ast.Ident)
	r, rok := right.(*ast.Ident)
	if lok && rok && versioned.MatchString(l.Name) && versioned.MatchString(r.Name) {
		s.versioned[l.Name] = append(s.versioned[l.Name], r.Name)
	}
}

// symbols follows the method to the C functions that it may call.
// Of GetGpuFabricInfoV the versions that call its own symbol; V1 calls another.
var handlerVersions = map[string][]string{"GpuFabricInfoHandler": {"V3"}}

// receivers are the names that go-nvml gives to the receivers of what a method
// of its library hands the call on to.
var receivers = map[string]string{"set": "nvmlEventSet", "gpmSample": "nvmlGpmSample"}

func (s goSource) symbols(t *testing.T, method string) []string {
	t.Helper()
	decl := s.methods[method]
	require.NotNil(t, decl, "go-nvml has no method %s", method)
	var found []string
	var follow func(*ast.FuncDecl)
	follow = func(d *ast.FuncDecl) {
		ast.Inspect(d, func(n ast.Node) bool {
			if lit, ok := n.(*ast.CompositeLit); ok { // a handler, whose V1 makes the call
				if ident, ok := lit.Type.(*ast.Ident); ok && s.methods[ident.Name+".V1"] != nil {
					versions := handlerVersions[ident.Name]
					if versions == nil {
						versions = []string{"V1"}
					}
					for _, v := range versions {
						follow(s.methods[ident.Name+"."+v])
					}
				}
			}
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				if versions := s.versioned[fun.Name]; versions != nil {
					for _, v := range versions {
						follow(s.functions[v])
					}
				} else if f := s.functions[fun.Name]; f != nil && (strings.HasPrefix(fun.Name, "nvml") || strings.HasPrefix(fun.Name, "gpm")) {
					follow(f)
				}
			case *ast.SelectorExpr:
				if x, ok := fun.X.(*ast.Ident); ok && receivers[x.Name] != "" {
					follow(s.methods[receivers[x.Name]+"."+fun.Sel.Name])
				} else if ok && x.Name == "C" && regexp.MustCompile(`^nvml[A-Z]`).MatchString(fun.Sel.Name) {
					found = append(found, fun.Sel.Name)
				}
			}
			return true
		})
	}
	follow(decl)
	return found
}

// functionNames maps the names of the table's constants to their values.
func functionNames(t *testing.T) map[string]function {
	t.Helper()
	names := map[string]function{}
	for _, file := range parsePackage(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "fn") {
				names[spec.Names[0].Name] = function(len(names))
			}
			return true
		})
	}
	require.Len(t, names, len(functions))
	return names
}

func parsePackage(t *testing.T) map[string]*ast.File {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	files := map[string]*ast.File{}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			files[name], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
		}
	}
	return files
}

func importsBinding(file *ast.File) bool {
	return slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return strings.Trim(i.Path.Value, `"`) == bindingPath })
}

func calls(call *ast.CallExpr, name string) bool {
	ident, ok := call.Fun.(*ast.Ident)
	return ok && ident.Name == name
}

// TestPanicIsAFailure: what go-nvml makes of an answer must not end the process.
func TestPanicIsAFailure(t *testing.T) {
	var failed []string
	l := &library{binding: &binding{has: make([]bool, len(functions))}, failure: func(function string, code Code) { failed = append(failed, function+" "+code.String()) }}
	l.binding.has[fnName] = true
	var pages []uint64
	n, code := guarded(l, fnName, func() (int, gonvml.Return) { return int(pages[:cap(pages)+1][0]), gonvml.SUCCESS })
	assert.Zero(t, n)
	assert.Equal(t, Panicked, code)
	assert.Equal(t, []string{"nvmlDeviceGetName panic"}, failed)
	assert.Equal(t, gpuhealth.ReasonError, code.reason())
}
