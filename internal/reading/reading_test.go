// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestCatalogueIsSound(t *testing.T) {
	assert.True(t, slices.IsSortedFunc(catalogue, func(a, b Metric) int { return strings.Compare(a.Name, b.Name) }), "the rows of catalogue.go must be sorted by name")
	want := map[Field]string{}
	for i := range catalogue {
		m := &catalogue[i]
		assert.Same(t, m, ByName(m.Name), "twice: %s", m.Name)
		assert.NotEqual(t, m.For == 0, m.Unread == "", "the row of %s must have either For, its readers, or Unread, why there are none", m.Name)
		assert.Less(t, m.Range.Min, m.Range.Max, m.Name)
		assert.LessOrEqual(t, len(m.Keys), maxKeys, m.Name)
		if m.For != 0 {
			assert.NotEmpty(t, m.Entries, m.Name)
			assert.NotEmpty(t, m.Fold.Why, m.Name)
			assert.True(t, m.Fold.Subjects != FoldNone && m.Fold.Points != FoldNone, m.Name)
		}
		for j := range m.Entries {
			if f := m.Entries[j].Field; f != None {
				assert.Empty(t, want[f], "%s has a field of another metric", m.Name)
				want[f] = m.Name
			}
		}
		factor, ok := m.Factor(m.Unit)
		assert.True(t, ok && factor == 1, m.Name)
	}
}

// Every metric that a component of this module writes or reports is in the
// catalogue, as it is, and the catalogue has no other of theirs.
func TestCatalogueHasAllMetricsOfTheModule(t *testing.T) {
	files, err := filepath.Glob("../../*/*/metadata.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 10)
	written := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		type sum struct {
			Type        string `yaml:"value_type"`
			Monotonic   bool   `yaml:"monotonic"`
			Temporality string `yaml:"aggregation_temporality"`
		}
		var component struct {
			Attributes map[string]struct {
				Name string   `yaml:"name_override"`
				Enum []string `yaml:"enum"`
			} `yaml:"attributes"`
			Metrics map[string]struct {
				Unit       string   `yaml:"unit"`
				Gauge      *sum     `yaml:"gauge"`
				Sum        *sum     `yaml:"sum"`
				Attributes []string `yaml:"attributes"`
			} `yaml:"metrics"`
			Telemetry struct {
				Metrics map[string]any `yaml:"metrics"`
			} `yaml:"telemetry"`
		}
		require.NoError(t, yaml.Unmarshal(text, &component))
		for name, is := range component.Metrics {
			written[name] = true
			m := ByName(name)
			if !assert.NotNil(t, m, "%s has %s: add a row for it to internal/reading/catalogue.go, sorted by name", file, name) {
				continue
			}
			kind, value := Gauge, is.Gauge
			if is.Sum != nil {
				kind, value = UpDownCounter, is.Sum
				if is.Sum.Monotonic {
					kind = Counter
				}
				assert.Equal(t, "cumulative", is.Sum.Temporality, name)
			}
			require.NotNil(t, value, name)
			assert.Equal(t, is.Unit, m.Unit, "Unit of %s in catalogue.go must be the unit in %s", name, file)
			assert.Equal(t, kind, m.Kind, "Kind of %s in catalogue.go must be the instrument in %s", name, file)
			for i := range m.Entries {
				for k, v := range m.Entries[i].Values[:len(m.Keys)] {
					if v == Any || m.Entries[i].Subject == Network || v == m.Keys[k].Absent {
						continue
					}
					found := slices.ContainsFunc(is.Attributes, func(key string) bool {
						a := component.Attributes[key]
						return (a.Name == m.Keys[k].Name || key == m.Keys[k].Name) && slices.Contains(a.Enum, v)
					})
					assert.True(t, found, "catalogue.go has %s with %s=%s: add the value to the attribute's enum in %s", name, m.Keys[k].Name, v, file)
				}
			}
		}
		for name := range component.Telemetry.Metrics {
			assert.Nil(t, ByName("otelcol_"+name), "the Collector's own are for its scraper")
		}
	}
	for i := range catalogue {
		if m := &catalogue[i]; strings.HasPrefix(m.Name, "hw.") && m.Entries[0].Subject == GPU {
			assert.True(t, written[m.Name], "catalogue.go has %s, and no metadata.yaml: add it to receiver/nvmlreceiver/metadata.yaml", m.Name)
		}
	}
}

// A gateway writes verdicts of nodes, and agents and diff everything else of them.
func TestOfGateway(t *testing.T) {
	var other []string
	for i := range catalogue {
		m := &catalogue[i]
		assert.Equal(t, m.Gateway, OfGateway(m.Name), m.Name)
		assert.Equal(t, m.Gateway, OfGateway([]byte(m.Name)), m.Name)
		if m.Gateway {
			assert.Equal(t, Node, m.Subject(), "%s is of a node", m.Name)
			other = append(other, m.Name)
		}
	}
	assert.Equal(t, []string{"gpu.node.straggler", "gpu.node.suspicion", "gpu.node.unjudged", "gpu.node.unjudged.until", "gpu.straggler.rank.median", "gpu.straggler.rank.value"}, other)
	assert.False(t, OfGateway("gpu.node.stragglers"))
	name := []byte("hw.gpu.ecc.sram.threshold_exceeded")
	assert.Zero(t, testing.AllocsPerRun(100, func() { OfGateway(name) }))
}

func TestUnits(t *testing.T) {
	tests := []struct {
		metric, unit string
		factor       float64
		ok           bool
	}{
		{"gpu.app.step.duration", "s", 1, true},
		{"gpu.app.step.duration", "", 1, true},
		{"gpu.app.step.duration", "ms", 1e-3, true},
		{"gpu.app.step.duration", "us", 1e-6, true},
		{"gpu.app.step.duration", "ns", 1e-9, true},
		{"gpu.app.step.duration", "min", 60, true},
		{"gpu.app.step.duration", "1", 0, false},
		{"gpu.app.step.duration", "{step}", 0, false},
		{"gpu.app.step.duration", "fortnight", 0, false},
		{"gpu.app.step.rate", "1/s", 1, true},
		{"gpu.app.step.rate", "{steps}/min", 1. / 60, true},
		{"gpu.app.step.rate", "s", 0, false},
		{"hw.power", "kW", 1e3, true},
		{"hw.power", "J", 0, false},
		{"hw.gpu.memory.usage", "MiBy", 1 << 20, true},
		{"hw.gpu.memory.usage", "MiB", 1 << 20, true},
		{"hw.gpu.memory.usage", "MBy", 1e6, true},
		{"hw.gpu.clock.frequency", "MHz", 1e6, true},
		{"hw.gpu.utilization", "%", 1e-2, true},
		{"hw.gpu.pcie.replays", "%", 0, false},
		{"hw.errors", "1", 1, true},
		{"hw.errors", "{errors}", 1, true},
		{"hw.energy", "kW.h", 3.6e6, true},
		{"hw.temperature", "[degF]", 0, false},
		{"hw.temperature", "K", 0, false},
		{"hw.network.bandwidth.limit", "Gbit/s", 1.25e8, true},
		{"hw.network.bandwidth.limit", "Gbit", 0, false},
		{"gpu.node.state", "1", 1, true},
	}
	for _, tt := range tests {
		factor, ok := ByName(tt.metric).Factor(tt.unit)
		assert.Equal(t, tt.ok, ok, "%s in %s", tt.metric, tt.unit)
		assert.InEpsilon(t, tt.factor+1, factor+1, 1e-12, "%s in %s", tt.metric, tt.unit)
	}
}

func TestSelect(t *testing.T) {
	tests := []struct {
		name, metric, hwType string
		texts                Texts
		field                Field
		subject              Subject
	}{
		{"power of a GPU", "hw.power", "gpu", Texts{}, Power, GPU},
		{"power of a supply", "hw.power", "power_supply", Texts{}, None, Other},
		{"errors of a GPU", "hw.errors", "gpu", Texts{"uncorrected", "aggregate", "all"}, ECCUncorrectedTotal, GPU},
		{"errors without location and counter", "hw.errors", "gpu", Texts{"corrected"}, ECCCorrected, GPU},
		{"errors of one memory", "hw.errors", "gpu", Texts{"corrected", "volatile", "sram"}, None, GPU},
		{"errors of a network adapter", "hw.errors", "network", Texts{"crc"}, NetworkErrors, Network},
		{"errors of unknown hardware", "hw.errors", "", Texts{"corrected"}, None, GPU},
		{"errors of a disk", "hw.errors", "physical_disk", Texts{"crc"}, None, Other},
		{"utilization without a task", "hw.gpu.utilization", "", Texts{}, Utilization, GPU},
		{"utilization of video", "hw.gpu.utilization", "", Texts{"encoder"}, EncoderUtilization, GPU},
		{"utilization of a fan", "hw.gpu.utilization", "fan", Texts{"general"}, None, Other},
		{"temperature of a GPU", "hw.temperature", "", Texts{"gpu"}, Temperature, GPU},
		{"temperature of an inlet", "hw.temperature", "", Texts{"inlet"}, None, GPU},
		{"temperature of a CPU", "hw.temperature", "cpu", Texts{"gpu"}, None, Other},
		{"a throttle reason of a newer driver", "hw.gpu.throttle.active", "", Texts{"moon"}, OtherThrottle, GPU},
		{"steal of the host", "system.cpu.utilization", "", Texts{"steal"}, CPUSteal, Node},
		{"steal of a CPU", "system.cpu.utilization", "", Texts{"steal", "3"}, None, Node},
		{"a step", "gpu.app.step.duration", "", Texts{}, StepDuration, Rank},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			field, subject := ByName(tt.metric).Select(tt.hwType, &tt.texts)
			assert.Equal(t, tt.field, field)
			assert.Equal(t, tt.subject, subject)
		})
	}
}

func TestFindIsTheInverseOfAttributes(t *testing.T) {
	for f := None + 1; f < NumFields; f++ {
		m, _ := Of(f)
		if f == NetworkErrors { // by hw.type alone
			continue
		}
		assert.Equal(t, f, Find(m.Name, Attributes(f)), m.Name)
	}
	assert.Equal(t, Power, Find("hw.power", map[string]string{"hw.type": "gpu"}))
	assert.Equal(t, None, Find("hw.power", map[string]string{"hw.type": "fan"}))
	assert.Equal(t, None, Find("hw.power", map[string]string{"colour": "red"}))
	assert.Equal(t, None, Find("hw.gpu.clock.frequency", map[string]string{"clock": "moon"}))
	assert.Equal(t, SMClock, Find("hw.gpu.clock.frequency", nil))
	assert.Equal(t, None, Find("mem.used", nil))
}

func TestJudge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &catalogue[rapid.IntRange(0, len(catalogue)-1).Draw(t, "metric")]
		v := rapid.Float64().Draw(t, "v")
		why := m.Judge(v, 1)
		assert.Equal(t, v >= m.Range.Min && v <= m.Range.Max && !(m.hardware && Blank(v)), why == Accepted)
		assert.False(t, math.IsInf(2*m.Range.Max*1e6, 0), "a million of them have a sum")
		if why != Accepted {
			assert.Contains(t, Refused{Metric: m, Why: why, Value: v}.String(), m.Name)
		}
	})
	assert.Equal(t, ValueRange, ByName("hw.power").Judge(1.7e308, 1))
	assert.Equal(t, NotFinite, ByName("hw.power").Judge(math.Inf(1), 1))
	assert.Equal(t, NotFinite, ByName("hw.power").Judge(math.NaN(), 1))
	assert.Equal(t, ValueRange, ByName("gpu.app.step.duration").Judge(0, 1))
}

// What stands for no value is none of a counter either, in whichever unit it came.
func TestBlanksAreNoValues(t *testing.T) {
	for _, sent := range []float64{
		2147483632, 2147483635, 2147483647, 4294967295, 140737488355328, 140737488355331,
		9223372036854775792, 9223372036854775795, 18446744073709551615, 1.7976931348623157e308,
	} {
		for _, name := range []string{"hw.errors", "hw.gpu.pcie.replays", "hw.energy", "hw.gpu.io", "hw.power", "hw.gpu.memory.usage"} {
			assert.Equal(t, []Refusal{ValueRange, ValueRange}, []Refusal{ByName(name).Judge(sent, 1), ByName(name).Judge(sent, 1e-3)}, "%s %v", name, sent)
		}
	}
	for _, sent := range []float64{2147483631, 2147483648, 2147483632.5, 4294967294, 4294967296, 140737488355327, 140737488355344} {
		assert.Equal(t, Accepted, ByName("hw.gpu.io").Judge(sent, 1), sent)
	}
	assert.Equal(t, Accepted, ByName("gpu.node.heartbeat").Judge(2147483632, 1), "a day in 2038")
}

func TestConvert(t *testing.T) {
	for units, want := range map[[2]string]float64{
		{"MiB", "By"}: 1 << 20, {"MiB", "GiBy"}: 1. / 1024, {"mW", "kW"}: 1e-6, {"%", "1"}: 0.01,
		{"V", "V"}: 1, {"V", "W"}: 0, {"W", "By"}: 0, {"Cel", "K"}: 0,
	} {
		got, ok := Convert(units[0], units[1])
		assert.Equal(t, want != 0, ok, units)
		assert.InDelta(t, want, got, 1e-12, units)
	}
}

func TestWhom(t *testing.T) {
	for _, tt := range []struct {
		metric, id, hwType string
		texts              Texts
		want               Refusal
	}{
		{"hw.errors", "GPU-0", "gpu", Texts{"corrected"}, Accepted},
		{"hw.errors", "GPU-0", "gpu", Texts{"page_fault"}, Accepted},
		{"hw.errors", "GPU-0", "gpu", Texts{}, BadSubject},
		{"hw.errors", "GPU-0", "gpu", Texts{"", "aggregate"}, BadSubject},
		{"hw.errors", "mlx5_0", "network", Texts{}, Accepted},
		{"hw.errors", "sda", "physical_disk", Texts{}, Accepted},
		{"hw.errors", "GPU-0", "", Texts{"corrected"}, BadSubject},
		{"hw.power", "GPU-0", "gpu", Texts{}, Accepted},
		{"hw.temperature", "GPU-0", "gpu", Texts{}, Accepted},
	} {
		m := ByName(tt.metric)
		_, subject := m.Select(tt.hwType, &tt.texts)
		assert.Equal(t, tt.want, m.JudgeSubject(subject, tt.id, tt.hwType, &tt.texts), "%+v", tt)
	}
}

func TestTakes(t *testing.T) {
	power, errors, memory := ByName("hw.power"), ByName("hw.errors"), ByName("hw.gpu.memory.usage")
	for i, want := range map[Instrument][3]bool{
		IsOther: {}, IsDelta: {}, IsGauge: {true, false, true}, IsUpDownCounter: {true, false, true}, IsCounter: {false, true, false},
	} {
		assert.Equal(t, want, [3]bool{power.Takes(i), errors.Takes(i), memory.Takes(i)})
	}
}

func TestRefusedSaysTheCorrectForm(t *testing.T) {
	tests := []struct {
		Refused
		want string
	}{
		{Refused{Metric: ByName("gpu.app.step.duration"), Why: WrongUnit, Unit: "fortnight"}, `metric gpu.app.step.duration has unit "fortnight": must be s (or ms, us, ns, min, h, d)`},
		{Refused{Metric: ByName("hw.temperature"), Why: WrongUnit, Unit: "[degF]"}, `metric hw.temperature has unit "[degF]": must be Cel`},
		{Refused{Metric: ByName("hw.errors"), Why: WrongType, Instrument: IsGauge}, "metric hw.errors is a gauge: must be a counter with cumulative temporality"},
		{Refused{Metric: ByName("hw.power"), Why: ValueRange, Value: 1.7e308}, "metric hw.power is 1.7e+308: must be from 0 to 100000 W"},
		{Refused{Metric: ByName("hw.errors"), Why: ValueRange, Value: 4294967295}, "metric hw.errors is 4294967295, which NVML and DCGM write where they have no value: such a point must be left out"},
		{Refused{Metric: ByName("hw.power"), Why: BadSubject}, "metric hw.power has no hw.type: must be gpu for that of a GPU"},
		{Refused{Metric: ByName("hw.errors"), Why: BadSubject}, "metric hw.errors has no hw.type: must be gpu for that of a GPU, with error.type corrected or uncorrected"},
		{Refused{Metric: ByName("hw.errors"), Why: BadSubject, ID: "GPU-0", HWType: "gpu"}, "metric hw.errors has no error.type: must be corrected or uncorrected for that of a GPU"},
		{Refused{Metric: ByName("hw.gpu.up"), Why: BadSubject, HWType: "network"}, `metric hw.gpu.up has hw.type "network": must be gpu`},
		{Refused{Metric: ByName("hw.gpu.up"), Why: BadSubject}, "metric hw.gpu.up has no hw.id: must be the UUID of the GPU, or the name of the network adapter"},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, tt.String())
	}
}

func TestComplaints(t *testing.T) {
	var c Complaints
	power, up, now := ByName("hw.power"), ByName("hw.gpu.up"), time.Unix(1_700_000_000, 0)
	first := func(cluster, node string, m *Metric, why Refusal) bool { return c.First(cluster, node, m, why, now) }
	assert.True(t, first("a", "n1", power, WrongUnit))
	assert.False(t, first("a", "n1", power, WrongUnit), "logged before")
	assert.True(t, first("a", "n1", power, ValueRange))
	assert.True(t, first("a", "n1", up, WrongUnit))
	assert.True(t, first("a", "n2", power, WrongUnit))
	assert.True(t, first("b", "n1", power, WrongUnit))
	assert.Zero(t, testing.AllocsPerRun(100, func() { first("a", "n1", power, WrongUnit) }))
}

// A cluster whose mistakes have no end hides no other, and is logged again when
// its old ones are forgotten.
func TestComplaintsAreShared(t *testing.T) {
	var c Complaints
	power, now := ByName("hw.power"), time.Unix(1_700_000_000, 0)
	noted := 0
	for i := range 2 * maxComplaints {
		now = now.Add(time.Second)
		if c.First("flood", strconv.Itoa(i), power, WrongUnit, now) {
			noted++
		}
	}
	assert.Positive(t, noted)
	assert.LessOrEqual(t, len(c.noted), maxComplaints/2)
	assert.False(t, c.First("flood", "one more", power, WrongUnit, now))
	assert.False(t, c.Once("flood", "no heartbeat", now))
	for i := range 100 {
		assert.True(t, c.First("quiet", strconv.Itoa(i), power, WrongUnit, now))
	}
	assert.True(t, c.Once("quiet", "no heartbeat", now))
	assert.False(t, c.Once("quiet", "no heartbeat", now))
	now = now.Add(memory)
	assert.True(t, c.First("flood", "one more", power, WrongUnit, now))
	assert.Equal(t, 1, c.slots.Taken(), "the others are forgotten")
	assert.Len(t, c.noted, 1)
}
