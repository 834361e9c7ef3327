// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

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
	line int64
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

func TestSteps(t *testing.T) {
	for _, tt := range []struct {
		name    string
		in      string
		window  time.Duration
		maxStep int
		want    []string
		skips   []skippedLine
	}{
		{name: "rows of one time leave together", in: "t,host,v\n1,a,10\n1,b,20\n2.5,a,11\n", want: []string{"1s: a=10 b=20", "2.5s: a=11"}},
		{name: "no end of line at the end, CRLF, byte order mark, blank lines", in: "\xef\xbb\xbft,host,v\r\n\r\n1,a,10\r\n\r\n2,a,11", want: []string{"1s: a=10", "2s: a=11"}},
		{name: "quoted fields", in: "\"t\",host,v\n1,\"a,\"\"x\"\"\",\"10\"\n", want: []string{`1s: a,"x"=10`}},
		{
			name:  "malformed rows cost only themselves",
			in:    "t,host,v\n1,a,10\n1,b\n1,c,1,2\n1,d,x\n1,e,NaN\n1,f,-Inf\n1,g,1e999\n1,\"h,1\n1,i\"j,1\n1,k,0x10\n1,l,\n1,,5\nsoon,m,1\n1,n,20\n",
			want:  []string{"1s: a=10 n=20"},
			skips: []skippedLine{{3, fieldCount}, {4, fieldCount}, {5, badNumber}, {6, notFinite}, {7, notFinite}, {8, notFinite}, {9, badQuote}, {10, badQuote}, {11, badNumber}, {12, empty}, {13, noNode}, {14, badTime}},
		},
		{name: "a row from the past is left out and does not end the step", in: "t,host,v\n5,a,1\n4,b,2\n5,c,3\n6,a,4\n", want: []string{"5s: a=1 c=3", "6s: a=4"}, skips: []skippedLine{{3, outOfOrder}}},
		{name: "a malformed row of a new time opens no step", in: "t,host,v\n1,a,1\n2,a,x\n1,b,2\n3,a,3\n", want: []string{"1s: a=1 b=2", "3s: a=3"}, skips: []skippedLine{{3, badNumber}}},
		{name: "the last row of a series in a step counts", in: "t,host,v\n1,a,1\n1,b,2\n1,a,3\n", want: []string{"1s: a=3 b=2"}},
		{name: "step window", in: "t,host,v\n10,a,1\n10.4,b,2\n9.6,c,3\n9.4,d,4\n10.6,a,5\n", window: 500 * time.Millisecond, want: []string{"10s: a=1 b=2 c=3", "10.6s: a=5"}, skips: []skippedLine{{5, outOfOrder}}},
		{name: "faster than the step window", in: "t,host,v\n10,a,1\n10.1,b,2\n10.2,a,3\n10.3,b,4\n10.4,a,5\n", window: 500 * time.Millisecond, want: []string{"10s: a=1 b=2", "10.2s: a=3 b=4", "10.4s: a=5"}},
		{name: "appended by a shell, and after a crash", in: "t,host,v\n\uFEFF1,a,1\n\x00\x002,a,2\n", want: []string{"1s: a=1", "2s: a=2"}},
		{name: "bound on a step", in: "t,host,v\n1,a,1\n1,b,2\n1,c,3\n2,a,4\n", maxStep: 6, want: []string{"1s: a=1 b=2", "2s: a=4"}, skips: []skippedLine{{4, stepTooLarge}}},
		{name: "header only", in: "t,host,v\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := onePoint()
			cfg.StepWindow = tt.window
			var skips []skippedLine
			r, err := newReader(strings.NewReader(tt.in), cfg, func(line int64, what loss) {
				skips = append(skips, skippedLine{line, what.why})
			})
			require.NoError(t, err)
			if tt.maxStep > 0 {
				r.maxStep = tt.maxStep
			}
			var steps []string
			for {
				s, err := r.step(t.Context())
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				md := r.table.report(s, "", "", time.Now(), time.Now())
				steps = append(steps, s.at.String()+": "+strings.ReplaceAll(strings.Join(pointsOf(md), " "), " mmap[]", ""))
			}
			assert.Equal(t, tt.want, steps)
			assert.Equal(t, tt.skips, skips)
		})
	}
}

func TestHeaderErrors(t *testing.T) {
	cfg := onePoint()
	cfg.Table.Metrics[0] = MetricConfig{Column: "v", Name: "hw.power"}
	for name, tt := range map[string]struct{ in, want string }{
		"empty file":         {"", "it is empty: the first line must name the columns"},
		"blank lines only":   {"\n\r\n", "it is empty"},
		"missing column":     {"t,hostname,v\n", `no column "host"; the file has: t, hostname, v`},
		"no metric's column": {"t,host,x\n", `no column "v"; the file has: t, host, x`},
		"doubled column":     {"t,host,v,v\n", `column "v" occurs more than once`},
		"quote in header":    {"t,\"host,v\n", "the header line has a quote"},
		"header is too long": {strings.Repeat("x", 100_000) + "\n", "line 1: bufio.Scanner: token too long"},
		"surely wrong unit":  {"t,host,v [MHz]\n", `column "v [MHz]" is in MHz, which cannot be converted to W of metric hw.power`},
	} {
		_, err := newReader(strings.NewReader(tt.in), cfg, nil)
		assert.ErrorContains(t, err, tt.want, name)
	}
}

// Memory stays bounded over a line that is as long as the file likes, and the
// rows before it, as before any error, are returned.
func TestAnErrorComesAfterTheRowsBeforeIt(t *testing.T) {
	broken := errors.New("disk on fire")
	for want, rest := range map[string]io.Reader{
		"disk on fire":                          iotest.ErrReader(broken),
		"line 3: bufio.Scanner: token too long": io.LimitReader(zeros{}, 1<<40),
	} {
		r, err := newReader(io.MultiReader(strings.NewReader("t,host,v\n1,a,1\n"), rest), onePoint(), func(int64, loss) {})
		require.NoError(t, err)
		s, err := r.step(t.Context())
		require.NoError(t, err)
		assert.Len(t, s.rows, 1)
		for range 2 {
			_, err = r.step(t.Context())
			require.ErrorContains(t, err, want)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
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
		"01.02.2025 10:00,r1s,1,lead,g0,,,7,-1,\n" +
		"01.02.2025 10:00,r1s,1,lead,g0,,,,,9e9\n" +
		"01.02.2025 10:00,r2,s1,lead,g0,,,8,,41\n" +
		"01.02.2025 10:01,r1,s1,,g1,,,,201,\n"
	skips := map[reason]int{}
	r, err := newReader(strings.NewReader(in), cfg, func(_ int64, what loss) { skips[what.why]++ })
	require.NoError(t, err)
	s, err := r.step(t.Context())
	require.NoError(t, err)
	assert.Equal(t, time.Date(2025, 2, 1, 10, 0, 0, 0, time.UTC), time.Unix(0, int64(s.at)).UTC())
	assert.Equal(t, map[reason]int{outOfRange: 2}, skips, "a sum below 0, and a temperature that cannot be")
	md := r.table.report(s, "east", "", time.Now(), time.Now())
	assert.Equal(t, []string{
		"r1-s1 b.powermap[]=500",
		"r1-s1 a.timemap[phase:forward]=3",
		"r1-s1 a.timemap[phase:backward]=2",
		"r1-s1 c.stepsmap[gpu:g0]=100",
		"r1-s1 c.stepsmap[gpu:g1]=200",
		"r1s-1 a.timemap[phase:backward]=7", // beside a sum that cannot be
		"r2-s1 a.timemap[phase:backward]=8",
		"r2-s1 hw.temperaturemap[hw.id:g0]=41",
	}, pointsOf(md))
	assert.Equal(t, map[string]any{"host.name": "r1-s1", "k8s.cluster.name": "east"}, md.ResourceMetrics().At(0).Resource().Attributes().AsRaw(),
		"an attribute that comes out empty is left out")
	known := md.ResourceMetrics().At(2).ScopeMetrics().At(0).Metrics().At(1)
	assert.Equal(t, "Cel", known.Unit(), "of a metric that the product reads")
	own := md.ResourceMetrics().At(0).ScopeMetrics().At(0)
	assert.Equal(t, metadata.ScopeName, own.Scope().Name())
	assert.Equal(t, "W", own.Metrics().At(0).Unit())
	steps := own.Metrics().At(2).Sum()
	assert.True(t, steps.IsMonotonic())
	assert.Equal(t, pmetric.AggregationTemporalityCumulative, steps.AggregationTemporality())

	s, err = r.step(t.Context())
	require.NoError(t, err)
	md = r.table.report(s, "", "", time.Now(), time.Now())
	assert.Equal(t, []string{"r1-s1 c.stepsmap[gpu:g1]=201"}, pointsOf(md), "nothing is left of the step before")
}

func TestTimes(t *testing.T) {
	epoch := time.Duration(time.Date(2025, 3, 1, 10, 0, 0, 250e6, time.UTC).UnixNano())
	for _, tt := range []struct {
		text string
		cfg  TimeConfig
		want time.Duration
	}{
		{"2025-03-01T10:00:00.25Z", TimeConfig{}, epoch},
		{"2025-03-01T11:00:00.25+01:00", TimeConfig{}, epoch},
		{"2025-03-01 10:00:00.250", TimeConfig{Layout: time.DateTime}, epoch},
		{"1740823200.25", TimeConfig{Unit: "s"}, epoch},
		{"1740823200250", TimeConfig{Unit: "ms"}, epoch},
		{"1740823200250000", TimeConfig{Unit: "us"}, epoch},
		{"1740823200250000000", TimeConfig{Unit: "ns"}, epoch},
		{"46.67", TimeConfig{Unit: "s"}, 46670 * time.Millisecond},
		{"-1.5", TimeConfig{Unit: "s"}, -1500 * time.Millisecond},
		{"0.1", TimeConfig{Unit: "ns"}, 0},
	} {
		got, ok := tt.cfg.parse(tt.text)
		assert.True(t, ok, tt.text)
		assert.InDelta(t, tt.want, got, 500, tt.text)
	}
	for _, cfg := range []TimeConfig{{}, {Unit: "s"}} {
		for _, text := range []string{
			"", "-", ".", "x", "1.2.3", "1e", "1e999", "NaN", "Inf", "0x10", "99999999999999999999",
			"2025-13-01T10:00:00Z", "9999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "10:00",
		} {
			_, ok := cfg.parse(text)
			assert.False(t, ok, "%q is no time", text)
		}
	}
}

// On any input times rise, steps are bounded, values are finite, text is UTF-8,
// and a row is handed on or left out, never lost.
func FuzzReader(f *testing.F) {
	f.Add([]byte("t,host,v\n1,a,10\n1,b,20\n2.5,a,11\n"))
	f.Add([]byte("\xef\xbb\xbft,host,v\r\n2025,\"a\"\"b\",1e3\r\n1,a,NaN\n\"\n"))
	f.Add([]byte("t,host,v\n1,a,1\n1,a,3\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var skipped int64
		r, err := newReader(bytes.NewReader(in), onePoint(), func(int64, loss) { skipped++ })
		if err != nil {
			return
		}
		r.maxStep = 64
		last, rows := time.Duration(math.MinInt64), int64(0)
		for {
			s, err := r.step(t.Context())
			if err != nil {
				break // the end, or a line that is too long
			}
			if s.at <= last {
				t.Fatalf("time %d after %d", s.at, last)
			}
			last = s.at
			if len(s.rows) == 0 || s.bytes >= r.maxStep+maxLineBytes {
				t.Fatalf("%d rows of %d bytes", len(s.rows), s.bytes)
			}
			rows += int64(len(s.rows))
			md := r.table.report(s, "", "", time.Now(), time.Now())
			if points := int64(md.DataPointCount()); points > int64(len(s.rows)) {
				t.Fatalf("%d points of %d rows", points, len(s.rows))
			}
			for _, p := range pointsOf(md) {
				if v, err := strconv.ParseFloat(p[strings.LastIndexByte(p, '=')+1:], 64); err != nil || math.IsNaN(v) || math.IsInf(v, 0) || p[0] == ' ' || !utf8.ValidString(p) {
					t.Fatalf("point %q", p)
				}
			}
		}
		if lines := int64(bytes.Count(in, []byte("\n")) + 1); rows+skipped > lines {
			t.Fatalf("%d rows and %d skipped of %d lines", rows, skipped, lines)
		}
	})
}
