// SPDX-License-Identifier: Apache-2.0

// Package heldbytes counts, for tests, the heap that values hold. What the runtime says
// of the heap is of the whole process and of the collector's moment; this is neither.
package heldbytes

import (
	"cmp"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// Of is what can be reached from the pointers in roots: each block as the allocator
// rounds it, and maps as their number of entries has them grow. Functions, channels and
// what only they hold count nothing.
func Of(roots ...any) int {
	w := walker{seen: map[visit]bool{}, pointers: map[reflect.Type]bool{}}
	for _, root := range roots {
		w.walk(reflect.ValueOf(root))
	}
	slices.SortFunc(w.blocks, func(a, b block) int { return cmp.Compare(a.at, b.at) })
	var last block
	for _, b := range w.blocks {
		if b.at < last.end { // a part of it
			last.end = max(last.end, b.end)
			continue
		}
		w.bytes += rounded(int(last.end - last.at))
		last = b
	}
	return w.bytes + rounded(int(last.end-last.at))
}

type visit struct {
	at uintptr
	t  reflect.Type
}

type block struct{ at, end uintptr }

type walker struct {
	bytes    int // of what has no address that a test sees
	blocks   []block
	seen     map[visit]bool
	pointers map[reflect.Type]bool // whether a type has any
}

// first notes a block, and returns whether it is new as one of the type.
func (w *walker) first(at unsafe.Pointer, size int, t reflect.Type) bool {
	v := visit{uintptr(at), t}
	if at == nil || w.seen[v] {
		return false
	}
	w.seen[v] = true
	w.blocks = append(w.blocks, block{v.at, v.at + uintptr(size)})
	return true
}

func (w *walker) walk(v reflect.Value) {
	if !v.IsValid() || !w.points(v.Type()) {
		return
	}
	t := v.Type()
	switch v.Kind() {
	case reflect.Pointer:
		if w.first(v.UnsafePointer(), int(t.Elem().Size()), t) {
			w.walk(v.Elem())
		}
	case reflect.Interface:
		if e := v.Elem(); e.IsValid() {
			if k := e.Kind(); k != reflect.Pointer && k != reflect.Map && k != reflect.Func && k != reflect.Chan {
				w.bytes += rounded(int(e.Type().Size()))
			}
			w.walk(e)
		}
	case reflect.String:
		w.first(v.UnsafePointer(), v.Len(), t)
	case reflect.Slice:
		// An array of the same start may be shorter: the type alone does not tell them apart.
		if w.first(v.UnsafePointer(), v.Cap()*int(t.Elem().Size()), reflect.ArrayOf(v.Cap(), t.Elem())) && w.points(t.Elem()) {
			for i := range v.Len() {
				w.walk(v.Index(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			w.walk(v.Index(i))
		}
	case reflect.Map:
		if w.first(v.UnsafePointer(), 48, t) {
			w.bytes += groups(v.Len(), t)
			for entries := v.MapRange(); entries.Next(); {
				w.walk(entries.Key())
				w.walk(entries.Value())
			}
		}
	case reflect.Struct:
		if t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[") {
			of := t.Field(0).Type.Elem() // it begins with [0]*T
			w.walk(reflect.NewAt(of.Elem(), v.Field(2).UnsafePointer()))
			return
		}
		for _, field := range v.Fields() {
			w.walk(field)
		}
	}
}

func (w *walker) points(t reflect.Type) bool {
	is, known := w.pointers[t]
	if known {
		return is
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.String, reflect.Slice, reflect.Map:
		is = true
	case reflect.Array:
		is = t.Len() > 0 && w.points(t.Elem())
	case reflect.Struct:
		for field := range t.Fields() {
			is = is || w.points(field.Type)
		}
		is = is || t.PkgPath() == "sync/atomic" && strings.HasPrefix(t.Name(), "Pointer[")
	}
	w.pointers[t] = is
	return is
}

// groups is what a map of n entries has its slots in: groups of eight with a word of
// control bytes, seven eighths of which may be full.
func groups(n int, t reflect.Type) int {
	if n == 0 {
		return 0
	}
	elsewhere, fields := 0, []reflect.StructField{{Name: "K", Type: t.Key()}, {Name: "V", Type: t.Elem()}}
	for i, f := range fields {
		if f.Type.Size() > 128 { // a slot has a pointer to it
			elsewhere += n * rounded(int(f.Type.Size()))
			fields[i].Type = reflect.TypeFor[unsafe.Pointer]()
		}
	}
	slots := 8
	if n > 8 {
		slots = 1 << bits.Len(uint((n*8+6)/7-1))
	}
	return elsewhere + rounded(slots*(int(reflect.StructOf(fields).Size())+1))
}

// rounded is the size of the block that n bytes get.
func rounded(n int) int {
	if n > 32<<10 {
		return (n + 8191) &^ 8191
	}
	return cap(append([]byte(nil), make([]byte, n)...))
}
