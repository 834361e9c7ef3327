// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// Declared after nvml.h: a list is its length and a buffer, and a length of 0
// asks for the length alone.
typedef int (*list_t)(void *device, unsigned int *count, void *list);
typedef int (*pages_t)(void *device, int cause, unsigned int *count, unsigned long long *addresses);
typedef int (*rows_t)(void *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed);

struct count { int code; unsigned int n; };
// Of a GPU's processes so many are listed by pid, the others are only counted. An entry begins
// with the pid, and has 16 bytes in the first version, else 24.
enum { MAX_PIDS = 256 };
struct pids { struct count all; unsigned int pid[MAX_PIDS]; };

struct rows { int code; unsigned int corrected, uncorrected, pending, failed; };

static struct count count_list(void *f, void *device) {
	struct count c = {0, 0};
	c.code = ((list_t)f)(device, &c.n, NULL);
	return c;
}

static struct pids list_pids(void *f, void *device, int entry) {
	unsigned long long list[MAX_PIDS * 3] = {0};
	struct pids p = {{0, MAX_PIDS}, {0}};
	p.all.code = ((list_t)f)(device, &p.all.n, list);
	for (unsigned int i = 0; p.all.code == 0 && i < p.all.n && i < MAX_PIDS; i++) {
		p.pid[i] = *(unsigned int *)((char *)list + i * entry);
	}
	return p;
}

static struct count count_pages(void *f, void *device, int cause) {
	struct count c = {0, 0};
	c.code = ((pages_t)f)(device, cause, &c.n, NULL);
	return c;
}

static struct rows remapped_rows(void *f, void *device) {
	struct rows r = {0, 0, 0, 0, 0};
	r.code = ((rows_t)f)(device, &r.corrected, &r.uncorrected, &r.pending, &r.failed);
	return r;
}
*/
import "C"

import (
	"reflect"
	"strings"
	"unsafe"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// directly are the functions whose go-nvml methods are no good. The methods of lists
// make room for the driver's number of entries: a dying board that reports four billion
// ends the process. The method of remapped rows takes garbage for a flag that is set.
var directly = [...]function{fnCompute, fnGraphics, fnRetiredPages, fnRemappedRows}

// look finds the symbols of the functions that are called directly, of each
// the newest. The library is loaded, and stays so.
func (b *binding) look() {
	path := C.CString(b.path)
	defer C.free(unsafe.Pointer(path))
	library := C.dlopen(path, C.RTLD_LAZY|C.RTLD_NOLOAD)
	if library == nil {
		return
	}
	for _, fn := range directly {
		for _, name := range functions[fn].symbols {
			symbol := C.CString(name)
			b.direct[fn] = C.dlsym(library, symbol)
			C.free(unsafe.Pointer(symbol))
			if b.direct[fn] != nil {
				b.unversioned = b.unversioned || fn == fnCompute && !strings.Contains(name, "_v")
				break
			}
		}
		b.has[fn] = b.direct[fn] != nil
	}
}

// handle is NVML's own, nil where go-nvml no longer keeps it where it does now.
func (d *device) handle() unsafe.Pointer {
	if raw := reflect.ValueOf(d.raw); raw.Kind() == reflect.Struct && raw.NumField() > 0 && raw.Field(0).Kind() == reflect.Pointer {
		return raw.Field(0).UnsafePointer()
	}
	return nil
}

// direct calls the function with the handle of the device.
func direct[T any](d *device, fn function, call func(symbol, handle unsafe.Pointer) (T, gonvml.Return)) (T, gonvml.Return) {
	handle := d.handle()
	if handle == nil {
		var none T
		return none, gonvml.ERROR_FUNCTION_NOT_FOUND
	}
	return call(d.library.binding.direct[fn], handle)
}

// countList asks for the length of a list of processes.
func countList(symbol, handle unsafe.Pointer) (uint32, gonvml.Return) {
	return counted(C.count_list(symbol, handle))
}

// processes are how many there are, and the pids of the first ones.
type processes struct {
	n    uint32
	pids []uint32
}

// listProcesses asks for the pids too, in one call.
func (b *binding) listProcesses(symbol, handle unsafe.Pointer) (processes, gonvml.Return) {
	entry := C.int(24)
	if b.unversioned {
		entry = 16
	}
	p := C.list_pids(symbol, handle, entry)
	if p.all.n <= C.MAX_PIDS && p.all.code != 0 { // it had room
		return processes{}, gonvml.Return(p.all.code)
	}
	n, code := counted(p.all)
	list := processes{n: n}
	for i := 0; p.all.code == 0 && i < min(int(n), C.MAX_PIDS); i++ {
		if p.pid[i] != 0 {
			list.pids = append(list.pids, uint32(p.pid[i]))
		}
	}
	return list, code
}

// countPages asks how many pages were retired for the cause.
func countPages(cause int) func(symbol, handle unsafe.Pointer) (uint32, gonvml.Return) {
	return func(symbol, handle unsafe.Pointer) (uint32, gonvml.Return) {
		return counted(C.count_pages(symbol, handle, C.int(cause)))
	}
}

// counted takes it for an answer that the entries do not fit into no room.
func counted(c C.struct_count) (uint32, gonvml.Return) {
	code := gonvml.Return(c.code)
	if code == gonvml.ERROR_INSUFFICIENT_SIZE && c.n > 0 {
		code = gonvml.SUCCESS
	}
	return uint32(c.n), code
}

// remappedRows are the raw numbers.
type remappedRows struct{ corrected, uncorrected, pending, failed uint32 }

func readRemappedRows(symbol, handle unsafe.Pointer) (remappedRows, gonvml.Return) {
	r := C.remapped_rows(symbol, handle)
	return remappedRows{uint32(r.corrected), uint32(r.uncorrected), uint32(r.pending), uint32(r.failed)}, gonvml.Return(r.code)
}
