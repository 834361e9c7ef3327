// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const testUUID = "GPU-00000000-0000-0000-0000-000000000001"

// TestValidateAsTheCatalogue: what the gateway would take the agent does not leave out.
func TestValidateAsTheCatalogue(t *testing.T) {
	for metric, put := range map[string]func(*Sample, float64){
		"hw.gpu.io.rate": func(s *Sample, v float64) { s.IORate[LinkPCIe][Receive] = Some(v) },
		"hw.errors":      func(s *Sample, v float64) { s.ECC[ECCCorrected][ECCAggregate] = Some(uint64(int64(v))) },
	} {
		asTheCatalogue(t, reading.ByName(metric), put)
	}
	for f := reading.None + 1; f < reading.EndNumbers; f++ {
		m, _ := reading.Of(f)
		asTheCatalogue(t, m, func(s *Sample, v float64) { s.Numbers[f] = Some(v) })
	}
}

func asTheCatalogue(t *testing.T, m *reading.Metric, put func(*Sample, float64)) {
	t.Helper()
	validate := func(v float64) []Field {
		s := Sample{Identity: Identity{UUID: testUUID}}
		put(&s, v)
		return s.Validate()
	}
	r := m.Range
	if m.Name != "hw.gpu.memory.limit" { // no board has none
		assert.Empty(t, validate(r.Min), m.Name)
	}
	assert.Empty(t, validate(r.Max), m.Name)
	assert.NotEmpty(t, validate(1.5*r.Max+1), m.Name)
	assert.NotEmpty(t, validate(r.Min-1), m.Name)
}

// Operators count rejections by these names.
func TestNamesOfNumbers(t *testing.T) {
	assert.Subset(t, numberNames, []Field{
		"memory.total", "memory.used", "memory.reserved", "utilization.general", "utilization.memory", "utilization.encoder", "utilization.decoder",
		"temperature.gpu", "temperature.memory", "temperature.margin", "power", "power.limit.enforced", "power.limit.max", "energy",
	})
}

func TestValidUUID(t *testing.T) {
	for uuid, want := range map[string]bool{
		testUUID: true, "MIG-abc": true, "GPU-": false, "": false, "gpu-1": false,
		"GPU-a b": false, "GPU-\xff": false, "GPU-\n": false,
	} {
		assert.Equal(t, want, ValidUUID(uuid), "%q", uuid)
		s := Sample{Identity: Identity{UUID: uuid}}
		assert.Equal(t, want, len(s.Validate()) == 0, "%q", uuid)
	}
}
