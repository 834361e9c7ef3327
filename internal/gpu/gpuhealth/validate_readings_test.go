// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const testMIG = "MIG-00000000-0000-0000-0000-000000000002"

func TestValidateReadings(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Sample)
		want   []Field
	}{
		{"nothing", func(*Sample) {}, nil},
		{"more used than there is", func(s *Sample) {
			s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryUsed] = Some[float64](10), Some[float64](11)
		}, []Field{"memory.used"}},
		{"all used", func(s *Sample) {
			s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryUsed] = Some[float64](10), Some[float64](10)
		}, nil},
		{"no memory at all", func(s *Sample) {
			s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryUsed] = Some[float64](0), Some[float64](0)
		}, []Field{"memory.total"}},
		{"reserved is more than all", func(s *Sample) {
			s.Numbers[reading.MemoryLimit], s.Numbers[reading.MemoryReserved] = Some[float64](5), Some[float64](6)
		}, []Field{"memory.reserved"}},
		{"hotter than silicon can be", func(s *Sample) { s.Numbers[reading.Temperature] = Some(200.1) }, []Field{"temperature.gpu"}},
		{"as hot as it can be", func(s *Sample) { s.Numbers[reading.Temperature] = Some(200.0) }, nil},
		{"faster than any link", func(s *Sample) { s.IORate[LinkPCIe][Receive] = Some(1.1e15) }, []Field{FieldIORate}},
		{"more errors than a count holds", func(s *Sample) { s.ECC[ECCCorrected][ECCAggregate] = Some[uint64](1<<53 + 2) }, []Field{FieldECC}},
		{"bit error rate", func(s *Sample) { s.NVLink.BitErrorRate = [NumBitErrors]Opt[float64]{Some(0.0), Some(1.5)} }, []Field{FieldBitErrorRate}},
		{"P state unknown to NVML", func(s *Sample) { s.PerformanceState = Some[uint32](32) }, []Field{FieldPerformanceState}},
		{"P state idle", func(s *Sample) { s.PerformanceState = Some[uint32](15) }, nil},
		{"an unknown recovery action", func(s *Sample) { s.RecoveryAction = Some(NumRecoveryActions) }, []Field{FieldRecoveryAction}},
		{"a throttle bit of tomorrow", func(s *Sample) { s.Throttle = Some[uint64](0x1000) }, nil},
		{"twelve lanes", func(s *Sample) { s.Numbers[reading.PCIeWidth] = Some(12.0) }, nil},
		{"replays of 32 bits of -3", func(s *Sample) { s.Numbers[reading.PCIeReplays] = Some[float64](0xFFFFFFFD) }, []Field{"pcie.replays"}},
		{"three lanes", func(s *Sample) { s.Numbers[reading.PCIeWidth] = Some[float64](3) }, []Field{"pcie.width"}},
		{"wider than it can be", func(s *Sample) {
			s.Numbers[reading.PCIeWidthLimit], s.Numbers[reading.PCIeWidth] = Some[float64](8), Some[float64](16)
		}, []Field{"pcie.width"}},
		{"faster than it can be", func(s *Sample) {
			s.Numbers[reading.PCIeGenerationLimit], s.Numbers[reading.PCIeGeneration] = Some[float64](4), Some[float64](5)
		}, []Field{"pcie.generation"}},
		{"an idle link", func(s *Sample) {
			s.Numbers[reading.PCIeGeneration], s.Numbers[reading.PCIeGenerationLimit] = Some(1.0), Some(7.0)
		}, nil},
		{"more links than there are", func(s *Sample) { s.NVLink.Up, s.NVLink.Down = Some[uint32](30), Some[uint32](30) }, []Field{FieldNVLinks, FieldNVLinks}},
		{"a link's bytes of 32 bits of -3", func(s *Sample) {
			s.NVLink.PerLink = make([]NVLink, 2)
			s.NVLink.PerLink[0].IO[Receive], s.NVLink.PerLink[1].IO[Receive] = Some[uint64](5), Some[uint64](0xFFFFFFFD)
		}, []Field{FieldIO}},
		{"two billion uncorrectable errors", func(s *Sample) { s.ECC[ECCUncorrected][ECCVolatile] = Some[uint64](1<<31 + 1) }, []Field{FieldECC}},
		{"two billion corrected errors", func(s *Sample) { s.ECC[ECCCorrected][ECCVolatile] = Some[uint64](1<<31 + 1) }, nil},
		{"a flag of -1", func(s *Sample) { s.RepairPending[RepairTPC] = s.YesNo(FieldRepair, 0xFFFFFFFF) }, []Field{FieldRepair}},
		{"flags", func(s *Sample) {
			s.RepairPending[RepairTPC], s.RepairPending[RepairChannel] = s.YesNo(FieldRepair, 0), s.YesNo(FieldRepair, 1)
		}, nil},
		{"a list of links without end", func(s *Sample) { s.NVLink.PerLink = make([]NVLink, MaxNVLinks+1) }, []Field{FieldNVLinks}},
		{"a fabric of tomorrow", func(s *Sample) { s.Fabric.State, s.Fabric.Summary = Some(NumFabricStates), Some(FabricSummary(-1)) }, []Field{FieldFabric, FieldFabric}},
		{"a slice of a GPU", func(s *Sample) {
			s.UUID, s.Parent, s.GPUInstance, s.ComputeInstance = testMIG, testUUID, Some[uint32](13), Some[uint32](0)
		}, nil},
		{"a slice of nothing known", func(s *Sample) { s.Parent = "0" }, []Field{FieldParent}},
		{"a slice of itself", func(s *Sample) { s.Parent = s.UUID }, []Field{FieldParent}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Sample{Identity: Identity{UUID: testUUID}, Reason: ReasonOK}
			s.Numbers[reading.Power] = Some(80.0)
			tt.change(&s)
			assert.Equal(t, tt.want, s.Validate())
			assert.Equal(t, Some(80.0), s.Numbers[reading.Power], "the rest of the sample is kept")
			assert.Empty(t, s.Validate(), "what is rejected once is gone")
		})
	}
}

// Every number of a sample must have a bound: garbage in any of them alone has
// to be found, so that a new field without validation fails here.
func TestValidateCoversEveryNumber(t *testing.T) {
	seen := 0
	var visit func(path string, v reflect.Value, s *Sample)
	visit = func(path string, v reflect.Value, s *Sample) {
		switch o := v.Addr().Interface().(type) {
		case *Opt[float64]:
			for _, garbage := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				*o = Some(garbage)
				assert.NotEmpty(t, s.Validate(), "%s = %v", path, garbage)
				assert.False(t, o.OK, path)
			}
			seen++
			return
		case *Opt[uint64]:
			for _, garbage := range []uint64{math.MaxUint64, math.MaxUint32} {
				*o = Some(garbage)
				assert.NotEmpty(t, s.Validate(), "%s = %v", path, garbage)
				assert.False(t, o.OK, path)
			}
			seen++
			return
		case *Opt[uint32]:
			*o = Some[uint32](math.MaxUint32)
			assert.NotEmpty(t, s.Validate(), path)
			assert.False(t, o.OK, path)
			seen++
			return
		case *Opt[bool]:
			return
		}
		switch v.Kind() {
		case reflect.Struct:
			if ok := v.FieldByName("OK"); ok.IsValid() { // an enumeration
				ok.SetBool(true)
				v.FieldByName("V").SetInt(-1)
				assert.NotEmpty(t, s.Validate(), path)
				seen++
				return
			}
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, v.Field(i), s)
			}
		case reflect.Array, reflect.Slice:
			for i := range v.Len() {
				visit(path, v.Index(i), s)
			}
		}
	}
	s := Sample{Identity: Identity{UUID: testUUID}}
	s.NVLink.PerLink = make([]NVLink, 1)
	visit("", reflect.ValueOf(&s).Elem(), &s)
	assert.Greater(t, seen, 70)
}

// A driver may return any bits. JSON builds the sample from them, because JSON
// can name every field.
func FuzzValidateReadings(f *testing.F) {
	f.Add([]byte(`{"Numbers":[{"V":300,"OK":true},{"V":1,"OK":true},{"V":2,"OK":true}],"NVLink":{"PerLink":[{}]}}`))
	f.Add([]byte(`{"UUID":"GPU-1","Fabric":{"State":{"V":-7,"OK":true}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := Sample{Identity: Identity{UUID: testUUID}}
		if json.Unmarshal(data, &s) != nil {
			return
		}
		uuid := s.UUID
		s.Validate()
		again := s.Validate()
		if ValidUUID(uuid) && len(again) > 0 || s.UUID != uuid {
			t.Fatalf("still rejected: %q", again)
		}
		if s.Numbers[reading.PCIeWidth].OK && s.Numbers[reading.PCIeWidthLimit].OK && s.Numbers[reading.PCIeWidth].V > s.Numbers[reading.PCIeWidthLimit].V {
			t.Fatal("wider than it can be")
		}
	})
}

// TestLinksAreSummed: where the driver gives no sum, and only while it is whole.
func TestLinksAreSummed(t *testing.T) {
	s := Sample{Identity: Identity{UUID: testUUID}}
	s.NVLink.PerLink = make([]NVLink, 3)
	for i := range s.NVLink.PerLink {
		l := &s.NVLink.PerLink[i]
		l.Errors[NVLinkReplay], l.Errors[NVLinkRecovery], l.Errors[NVLinkCRC] = Some(uint64(i)), Some(uint64(i)), Some(uint64(i))
		l.IO[Transmit], l.IO[Receive] = Some(uint64(10+i)), Some(uint64(10+i))
	}
	s.NVLink.PerLink[1].Errors[NVLinkRecovery] = Some[uint64](math.MaxUint32)
	s.NVLink.Errors[NVLinkCRC], s.IO[LinkNVLink][Receive] = Some[uint64](7), Some[uint64](1000)
	s.NVLink.SumsOnly = true
	assert.Equal(t, []Field{FieldNVLinkErrors}, s.Validate())
	assert.Equal(t, Some[uint64](3), s.NVLink.Errors[NVLinkReplay])
	assert.Equal(t, Opt[uint64]{}, s.NVLink.Errors[NVLinkRecovery], "a sum without one link would go back")
	assert.Equal(t, Some[uint64](7), s.NVLink.Errors[NVLinkCRC], "the driver's")
	assert.Equal(t, Opt[uint64]{}, s.NVLink.Errors[NVLinkSymbol])
	assert.Equal(t, Some[uint64](33), s.IO[LinkNVLink][Transmit])
	assert.Equal(t, Some[uint64](1000), s.IO[LinkNVLink][Receive], "the driver's")
	assert.Nil(t, s.NVLink.PerLink, "they were not asked for")
}
