// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// TestTable: symbols are those of their method. The linter forbidigo finds calls around the
// guard, and TestEverySymbolMayBeMissing those that are guarded for another function.
// nvmlDeviceGetPcieThroughput blocks for 20 ms per direction (nvml.h).
func TestTable(t *testing.T) {
	for _, f := range functions {
		for _, symbol := range f.symbols {
			assert.Regexp(t, "^nvml(Device)?"+f.method+"(_v[0-9])?$", symbol)
		}
		assert.NotContains(t, f.method, "Throughput")
	}
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
