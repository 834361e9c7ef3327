// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

// onePoint is the smallest mapping: t,host,v.
func onePoint() *Config {
	return &Config{Table: TableConfig{
		Time:     TimeConfig{Column: "t", Unit: "s"},
		Resource: map[string]string{"host.name": "{host}"},
		Metrics:  []MetricConfig{{Column: "v", Name: "m"}},
	}}
}

type skippedLine struct {
	line int
	why  reason
}

// pointsOf renders points as "host metric[attributes]=value", in their order.
func pointsOf(md pmetric.Metrics) (all []string) {
	for _, rm := range md.ResourceMetrics().All() {
		host, _ := rm.Resource().Attributes().Get("host.name")
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, dp := range metricreading.Points(m).All() {
				all = append(all, fmt.Sprintf("%s %s%v=%v", host.Str(), m.Name(), dp.Attributes().AsRaw(), metricreading.Number(dp)))
			}
		}
	}
	return all
}

func TestBounds(t *testing.T) {
	read := func(in io.Reader) *reader {
		r, err := newReader(in, onePoint(), "", time.Now(), func(int, reason, error) {})
		require.NoError(t, err)
		return r
	}
	unclosed := read(strings.NewReader("t,host,v\n1,\"a,1\n" + strings.Repeat("1,b,1\n", maxRowBytes/2)))
	for range 2 {
		_, err := unclosed.step(t.Context())
		require.ErrorContains(t, err, "a row is longer than 1048576 bytes")
	}

	var rows strings.Builder
	rows.WriteString("t,host,v\n")
	for i := range maxStepPoints + 1 {
		fmt.Fprintf(&rows, "1,%d,1\n", i)
	}
	r := read(strings.NewReader(rows.String()))
	for _, want := range []int{maxStepPoints, 1} {
		s, err := r.step(t.Context())
		require.NoError(t, err)
		assert.Len(t, s.points, want)
	}
}

func TestSteps(t *testing.T) {
	for _, tt := range []struct {
		name   string
		in     string
		window time.Duration
		want   []string
		skips  []skippedLine
	}{
		{name: "rows of one time leave together", in: "t,host,v\n1,a,10\n1,b,20\n2.5,a,11\n", want: []string{"1s: a=10 b=20", "2.5s: a=11"}},
		{name: "no end of line at the end, CRLF, byte order mark, blank lines", in: "\xef\xbb\xbft,host,v\r\n\r\n1,a,10\r\n\r\n2,a,11", want: []string{"1s: a=10", "2s: a=11"}},
		{name: "quoted fields", in: "\"t\",host,v\n1,\"a,\"\"x\"\"\", \"10\"\n", want: []string{`1s: a,"x"=10`}},
		{name: "no UTF-8", in: "t,host,v\n1,\xff,10\n", want: []string{"1s: \uFFFD=10"}},
		{
			name:  "malformed rows cost only themselves",
			in:    "t,host,v\n1,a,10\n1,b\n1,c,1,2\n1,i\"j,1\n1,l,\n1,,5\nsoon,m,1\n1e999,m,1\n1,n,20\n",
			want:  []string{"1s: a=10 n=20"},
			skips: []skippedLine{{3, badRow}, {4, badRow}, {5, badRow}, {6, noValue}, {7, noNode}, {8, badTime}, {9, badTime}},
		},
		{name: "a row from the past is left out and does not end the step", in: "t,host,v\n5,a,1\n4,b,2\n5,c,3\n6,a,4\n", want: []string{"5s: a=1 c=3", "6s: a=4"}, skips: []skippedLine{{3, outOfOrder}}},
		{name: "a row without a value makes no step", in: "t,host,v\n1,a,\n2,a,\n3,a,3\n", want: []string{"3s: a=3"}, skips: []skippedLine{{2, noValue}, {3, noValue}}},
		{name: "the last row of a series in a step counts", in: "t,host,v\n1,a,1\n1,b,2\n1,a,3\n", want: []string{"1s: a=3 b=2"}},
		{name: "step window", in: "t,host,v\n10,a,1\n10.4,b,2\n9.6,c,3\n9.4,d,4\n10.6,a,5\n", window: 500 * time.Millisecond, want: []string{"10s: a=1 b=2 c=3", "10.6s: a=5"}, skips: []skippedLine{{5, outOfOrder}}},
		{name: "header only", in: "t,host,v\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := onePoint()
			cfg.StepWindow = tt.window
			var skips []skippedLine
			r, err := newReader(strings.NewReader(tt.in), cfg, "", time.Now(), func(line int, why reason, _ error) {
				skips = append(skips, skippedLine{line, why})
			})
			require.NoError(t, err)
			var steps []string
			for {
				s, err := r.step(t.Context())
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				steps = append(steps, s.at.Sub(time.Unix(0, 0)).String()+": "+strings.ReplaceAll(strings.Join(pointsOf(s.md), " "), " mmap[]", ""))
			}
			assert.Equal(t, tt.want, steps)
			assert.Equal(t, tt.skips, skips)
		})
	}
}

func TestHeaderErrors(t *testing.T) {
	cfg := onePoint()
	cfg.Table.Metrics[0] = MetricConfig{Column: "v", Name: "hw.power"}
	for in, want := range map[string]string{
		"":                 "it is empty: the first line must name the columns",
		"t,hostname,v\n":   `no column "host"; the file has: t, hostname, v`,
		"t,host,x\n":       `no column "v"; the file has: t, host, x`,
		"t,\"host,v\n":     "parse error on line 1",
		"t,host,v [MHz]\n": `column "v [MHz]": MHz cannot be converted to W of metric hw.power`,
	} {
		_, err := newReader(strings.NewReader(in), cfg, "", time.Now(), nil)
		assert.ErrorContains(t, err, want)
	}
}

func TestAnErrorComesAfterTheRowsBeforeIt(t *testing.T) {
	in := io.MultiReader(strings.NewReader("t,host,v\n1,a,1\n"), iotest.ErrReader(errors.New("disk on fire")))
	r, err := newReader(in, onePoint(), "", time.Now(), nil)
	require.NoError(t, err)
	s, err := r.step(t.Context())
	require.NoError(t, err)
	assert.Len(t, s.points, 1)
	_, err = r.step(t.Context())
	require.ErrorContains(t, err, "disk on fire")
}

func TestMapping(t *testing.T) {
	cfg := &Config{Table: TableConfig{
		Time:     TimeConfig{Column: "when", Layout: "02.01.2006 15:04"},
		Resource: map[string]string{"host.name": "{rack}-{slot}", "gpu.job.role": "{role}"},
		Metrics: []MetricConfig{
			{Column: "kw", Name: "b.power", Unit: "W", Scale: 1000},
			{Column: "fw", Name: "a.time", Attributes: map[string]string{"phase": "forward"}},
			{Column: "steps", Name: "c.steps", Type: "sum", Attributes: map[string]string{"gpu": "{gpu}"}},
			{Column: "bw", Name: "a.time", Attributes: map[string]string{"phase": "backward"}},
			{Column: "temp", Name: "hw.temperature", When: map[string]string{"role": "lead"}, Attributes: map[string]string{"hw.id": "{gpu}"}},
		},
	}}
	in := "when,rack,slot,role,gpu,kw,fw,bw,steps,temp\n" +
		"01.02.2025 10:00,r1,s1,,g0,0.5,1,2,100,40\n" +
		"01.02.2025 10:00,r1,s1,,g1,,3,,200,\n" +
		"01.02.2025 10:00,r1s,1,lead,g0,,,7,,\n" +
		"01.02.2025 10:00,r1s,1,lead,g0,,,,,9e9\n" +
		"01.02.2025 10:00,r2,s1,lead,g0,,,8,,41\n" +
		"01.02.2025 10:01,r1,s1,,g1,,,,201,\n"
	skips := map[reason]int{}
	r, err := newReader(strings.NewReader(in), cfg, "", time.Now(), func(_ int, why reason, _ error) { skips[why]++ })
	require.NoError(t, err)
	s, err := r.step(t.Context())
	require.NoError(t, err)
	assert.Equal(t, time.Date(2025, 2, 1, 10, 0, 0, 0, time.UTC), s.at.UTC())
	assert.Equal(t, map[reason]int{badValue: 1, noValue: 1}, skips, "a temperature that cannot be")
	assert.Equal(t, []string{
		"r1-s1 b.powermap[]=500",
		"r1-s1 a.timemap[phase:forward]=3",
		"r1-s1 a.timemap[phase:backward]=2",
		"r1-s1 c.stepsmap[gpu:g0]=100",
		"r1-s1 c.stepsmap[gpu:g1]=200",
		"r1s-1 a.timemap[phase:backward]=7",
		"r2-s1 a.timemap[phase:backward]=8",
		"r2-s1 hw.temperaturemap[hw.id:g0]=41",
	}, pointsOf(s.md))
	assert.Equal(t, map[string]any{"host.name": "r1-s1"}, s.md.ResourceMetrics().At(0).Resource().Attributes().AsRaw(),
		"an attribute that comes out empty is left out")
	known := s.md.ResourceMetrics().At(2).ScopeMetrics().At(0).Metrics().At(1)
	assert.Equal(t, "Cel", known.Unit(), "of a metric that the product reads")
	own := s.md.ResourceMetrics().At(0).ScopeMetrics().At(0)
	assert.Equal(t, metadata.ScopeName, own.Scope().Name())
	assert.Equal(t, "W", own.Metrics().At(0).Unit())
	steps := own.Metrics().At(2).Sum()
	assert.True(t, steps.IsMonotonic())
	assert.Equal(t, pmetric.AggregationTemporalityCumulative, steps.AggregationTemporality())
}

func TestTimes(t *testing.T) {
	want := time.Date(2025, 3, 1, 10, 0, 0, 250e6, time.UTC)
	for _, tt := range []struct {
		text string
		cfg  TimeConfig
	}{
		{"2025-03-01T11:00:00.25+01:00", TimeConfig{}},
		{"2025-03-01 10:00:00.250", TimeConfig{Layout: time.DateTime}},
		{"1740823200.25", TimeConfig{Unit: "s"}},
		{"1740823200250", TimeConfig{Unit: "ms"}},
		{"1740823200250000", TimeConfig{Unit: "us"}},
		{"1740823200250000000", TimeConfig{Unit: "ns"}},
	} {
		got, err := tt.cfg.parse(tt.text)
		require.NoError(t, err)
		assert.WithinDuration(t, want, got, time.Microsecond, tt.text)
	}
	for _, cfg := range []TimeConfig{{}, {Unit: "s"}} {
		for _, text := range []string{"", "x", "1e999", "NaN", "Inf", "99999999999999999999", "2025-13-01T10:00:00Z", "10:00"} {
			_, err := cfg.parse(text)
			assert.Error(t, err, "%q is no time", text)
		}
	}
}
