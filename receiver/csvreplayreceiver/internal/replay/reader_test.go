// SPDX-License-Identifier: Apache-2.0

package replay

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
)

// onePointTable is the smallest mapping: host,t,v.
var onePointTable = TableSpec{
	Time:     TimeSpec{Column: "t"},
	Resource: map[string]string{"host.name": "{host}"},
	Metrics:  []MetricSpec{{Column: "v", Metric: Metric{Name: "m"}, Scale: 1}},
}

type skipped struct {
	line   int64
	reason Reason
}

// readAll renders each step as "time: host=value ..." and returns what was skipped.
func readAll(t *testing.T, in string, opts Options) (steps []string, skips []skipped, stats *Stats) {
	t.Helper()
	opts.OnSkip = func(line int64, reason Reason, _ string) { skips = append(skips, skipped{line, reason}) }
	r, err := NewTable(strings.NewReader(in), onePointTable, opts)
	require.NoError(t, err)
	for {
		step, err := r.Next()
		if errors.Is(err, io.EOF) {
			return steps, skips, r.Stats()
		}
		require.NoError(t, err)
		var s strings.Builder
		s.WriteString(step.Time.String() + ":")
		rows := 0
		for _, n := range step.Nodes {
			rows += n.Rows
			for _, p := range n.Points {
				fmt.Fprintf(&s, " %s=%v", n.Attributes[0].Text, p.Value)
			}
		}
		assert.Equal(t, step.Rows, rows, "rows of the step and of its nodes")
		steps = append(steps, s.String())
	}
}

func TestSteps(t *testing.T) {
	for _, tt := range []struct {
		name  string
		in    string
		opts  Options
		want  []string
		skips []skipped
	}{
		{
			name: "rows of one time leave together",
			in:   "t,host,v\n1,a,10\n1,b,20\n2.5,a,11\n",
			want: []string{"1s: a=10 b=20", "2.5s: a=11"},
		},
		{
			name: "no end of line at the end, CRLF, byte order mark, blank lines",
			in:   "\xef\xbb\xbft,host,v\r\n\r\n1,a,10\r\n\r\n2,a,11",
			want: []string{"1s: a=10", "2s: a=11"},
		},
		{
			name: "quoted fields",
			in:   "\"t\",host,v\n1,\"a,\"\"x\"\"\",\"10\"\n",
			want: []string{`1s: a,"x"=10`},
		},
		{
			name: "malformed rows cost only themselves",
			in:   "t,host,v\n1,a,10\n1,b\n1,c,1,2\n1,d,x\n1,e,NaN\n1,f,-Inf\n1,g,1e999\n1,\"h,1\n1,i\"j,1\n1,k,0x10\n1,l,\n1,,5\nsoon,m,1\n1,n,20\n",
			want: []string{"1s: a=10 n=20"},
			skips: []skipped{
				{3, FieldCount},
				{4, FieldCount},
				{5, BadNumber},
				{6, NotFinite},
				{7, NotFinite},
				{8, NotFinite},
				{9, BadQuote},
				{10, BadQuote},
				{11, BadNumber},
				{12, Empty},
				{13, NoNode},
				{14, BadTime},
			},
		},
		{
			name:  "a row from the past is left out and does not end the step",
			in:    "t,host,v\n5,a,1\n4,b,2\n5,c,3\n6,a,4\n",
			want:  []string{"5s: a=1 c=3", "6s: a=4"},
			skips: []skipped{{3, OutOfOrder}},
		},
		{
			name:  "a malformed row of a new time opens no step",
			in:    "t,host,v\n1,a,1\n2,a,x\n1,b,2\n3,a,3\n",
			want:  []string{"1s: a=1 b=2", "3s: a=3"},
			skips: []skipped{{3, BadNumber}},
		},
		{
			name: "the last row of a series in a step counts",
			in:   "t,host,v\n1,a,1\n1,b,2\n1,a,3\n",
			want: []string{"1s: a=3 b=2"},
		},
		{
			name:  "step window",
			in:    "t,host,v\n10,a,1\n10.4,b,2\n9.6,c,3\n9.4,d,4\n10.6,a,5\n",
			opts:  Options{StepWindow: 500 * time.Millisecond},
			want:  []string{"10s: a=1 b=2 c=3", "10.6s: a=5"},
			skips: []skipped{{5, OutOfOrder}},
		},
		{
			name:  "bounds on a step and on a line",
			in:    "t,host,v\n1,a,1\n1,b,2\n1,c,3\n2," + strings.Repeat("x", 100) + ",3\n2,a,4\n",
			opts:  Options{MaxStepRows: 2, MaxLineBytes: 50},
			want:  []string{"1s: a=1 b=2", "2s: a=4"},
			skips: []skipped{{4, StepTooLarge}, {5, LineTooLong}},
		},
		{
			name: "header only",
			in:   "t,host,v\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, skips, stats := readAll(t, tt.in, tt.opts)
			assert.Equal(t, tt.want, steps)
			assert.Equal(t, tt.skips, skips)
			assert.EqualValues(t, len(tt.in), stats.Bytes)
			assert.EqualValues(t, len(tt.want), stats.Steps)
		})
	}
}

func TestDuplicatesAreCounted(t *testing.T) {
	_, skips, stats := readAll(t, "t,host,v\n1,a,1\n1,a,2\n1,a,3\n", Options{})
	assert.Empty(t, skips, "a duplicate is no malformed row")
	assert.EqualValues(t, 2, stats.Skipped[Duplicate])
	assert.EqualValues(t, 1, stats.Rows)
}

// A line far over the buffer must not be kept: it is as long as the file likes.
func TestLongLineIsNotKept(t *testing.T) {
	long := io.MultiReader(
		strings.NewReader("t,host,v\n1,a,1\n2,"),
		io.LimitReader(zeros{}, 32<<20),
		strings.NewReader("\n3,a,3\n"),
	)
	r, err := NewTable(long, onePointTable, Options{})
	require.NoError(t, err)
	for range 2 {
		_, err = r.Next()
		require.NoError(t, err)
	}
	assert.EqualValues(t, 1, r.Stats().Skipped[LineTooLong])
	assert.Less(t, cap(r.lines.long), 1<<20)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestHeaderErrors(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"empty file":         {"", "it is empty: the first line must name the columns"},
		"blank lines only":   {"\n\r\n", "it is empty"},
		"missing column":     {"t,hostname,v\n", `no column "host"; the file has: t, hostname, v`},
		"doubled column":     {"t,host,v,v\n", `column "v" occurs more than once`},
		"quote in header":    {"t,\"host,v\n", "the header line has a quote"},
		"header is too long": {strings.Repeat("x", 100_000) + "\n", "the header line is longer than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewTable(strings.NewReader(tt.in), onePointTable, Options{})
			assert.ErrorContains(t, err, tt.want)
		})
	}
	_, err := NewDCGM(strings.NewReader("timestamp,metric_name,value\n"), Options{})
	assert.ErrorContains(t, err, `no column "uuid"; the file has: timestamp, metric_name, value`)
}

func TestReadErrorComesAfterTheRowsBeforeIt(t *testing.T) {
	broken := errors.New("disk on fire")
	in := io.MultiReader(strings.NewReader("t,host,v\n1,a,1\n"), iotest.ErrReader(broken))
	r, err := NewTable(in, onePointTable, Options{})
	require.NoError(t, err)
	step, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, 1, step.Rows)
	for range 2 {
		_, err = r.Next()
		require.ErrorIs(t, err, broken)
	}
}

func TestTableMapping(t *testing.T) {
	spec := TableSpec{
		Time:     TimeSpec{Column: "when", Layout: "02.01.2006 15:04"},
		Resource: map[string]string{"host.name": "{rack}-{slot}", "gpu.job.id": "{{AR}}", "gpu.job.role": "{role}"},
		Metrics: []MetricSpec{
			{Column: "kw", Metric: Metric{Name: "b.power", Unit: "W"}, Scale: 1000},
			{Column: "fw", Metric: Metric{Name: "a.time"}, Scale: 1, Attributes: map[string]string{"phase": "forward"}},
			{Column: "steps", Metric: Metric{Name: "c.steps", Kind: KindSum}, Scale: 1, Attributes: map[string]string{"gpu": "{gpu}"}},
			{Column: "bw", Metric: Metric{Name: "a.time"}, Scale: 1, Attributes: map[string]string{"phase": "backward"}},
		},
	}
	in := "when,rack,slot,role,gpu,kw,fw,bw,steps\n" +
		"01.02.2025 10:00,r1,s1,,g0,0.5,1,2,100\n" +
		"01.02.2025 10:00,r1,s1,,g1,,3,,200\n" +
		"01.02.2025 10:00,r1s,1,lead,g0,,,7,-1\n" +
		"01.02.2025 10:00,r2,s1,lead,g0,,,8,\n" +
		"01.02.2025 10:01,r1,s1,,g1,,,,201\n"
	r, err := NewTable(strings.NewReader(in), spec, Options{})
	require.NoError(t, err)
	step, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, time.Date(2025, 2, 1, 10, 0, 0, 0, time.UTC), time.Unix(0, int64(step.Time)).UTC())
	assert.EqualValues(t, 1, r.Stats().Skipped[OutOfRange], "a sum below 0")
	require.Len(t, step.Nodes, 2)

	first := step.Nodes[0]
	assert.Equal(t, []Attribute{{Key: "gpu.job.id", Text: "{AR}"}, {Key: "host.name", Text: "r1-s1"}}, first.Attributes,
		"an attribute that comes out empty is left out")
	var got []string
	for _, p := range first.Points {
		got = append(got, fmt.Sprintf("%s %v %v", p.Metric.Name, p.Attributes, p.Value))
	}
	assert.Equal(t, []string{
		"a.time [{phase forward 0}] 3",
		"a.time [{phase backward 0}] 2",
		"b.power [] 500",
		"c.steps [{gpu g0 0}] 100",
		"c.steps [{gpu g1 0}] 200",
	}, got)
	assert.Same(t, first.Points[0].Metric, first.Points[1].Metric, "one metric has one description")
	assert.Equal(t, Attribute{Key: "gpu.job.role", Text: "lead"}, step.Nodes[1].Attributes[1])

	step, err = r.Next()
	require.NoError(t, err)
	require.Len(t, step.Nodes, 1)
	require.Len(t, step.Nodes[0].Points, 1, "nothing is left of the step before")
	assert.Equal(t, []Attribute{{Key: "gpu", Text: "g1"}}, step.Nodes[0].Points[0].Attributes)
}

func TestCheckTemplate(t *testing.T) {
	for text, want := range map[string]string{
		"dp{a}-pp{b}": "",
		"":            "",
		"{{}}":        "",
		"{a":          "not closed",
		"{a{b}":       "not closed",
		"a}":          "closes nothing",
		"{ }":         "no column name",
	} {
		if err := CheckTemplate(text); want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
}

func TestTimes(t *testing.T) {
	utc := time.Date(2025, 3, 1, 10, 0, 0, 250e6, time.UTC)
	epoch := time.Duration(utc.UnixNano())
	for _, tt := range []struct {
		text string
		spec TimeSpec
		want time.Duration
	}{
		{"2025-03-01T10:00:00.25Z", TimeSpec{}, epoch},
		{"2025-03-01T11:00:00.25+01:00", TimeSpec{}, epoch},
		{"2025-03-01 10:00:00.250", TimeSpec{}, epoch},
		{" 2025-03-01T10:00:00.25 ", TimeSpec{}, epoch},
		{"2025-03-01 10:00:00.25+00:00", TimeSpec{}, epoch},
		{"2025-03-01 10:00:00.25 UTC", TimeSpec{}, epoch},
		{"1740823200.25", TimeSpec{}, epoch},
		{"1740823200250", TimeSpec{}, epoch},
		{"1740823200250000", TimeSpec{}, epoch},
		{"1740823200250000000", TimeSpec{}, epoch},
		{"1.75e9", TimeSpec{}, 1_750_000_000 * time.Second},
		{"1740823200.123456789", TimeSpec{}, epoch - 250e6 + 123456789},
		{"46.67", TimeSpec{Unit: time.Second}, 46670 * time.Millisecond},
		{"1740823200250", TimeSpec{Unit: time.Microsecond}, 1740823200250 * time.Microsecond},
		{"-1.5", TimeSpec{Unit: time.Second}, -1500 * time.Millisecond},
		{"0.1", TimeSpec{Unit: time.Nanosecond}, 0},
	} {
		p := timeParser{spec: tt.spec}
		for range 2 {
			got, ok := p.parse([]byte(tt.text))
			assert.True(t, ok, tt.text)
			assert.Equal(t, tt.want, got, tt.text)
		}
	}
	for _, text := range []string{
		"", " ", "-", ".", "x", "1.2.3", "1e", "1e999", "NaN", "Inf", "0x10", "1_000", "99999999999999999999",
		"2025-13-01T10:00:00Z", "9999-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "10:00",
	} {
		p := timeParser{}
		_, ok := p.parse([]byte(text))
		assert.False(t, ok, "%q is no time", text)
	}
}

func TestStarts(t *testing.T) {
	s := NewStarts(2)
	at := func(sec int) time.Time { return time.Unix(int64(sec), 0) }
	node := []Attribute{{Key: "host.name", Text: "a"}}
	point := func(id string, v float64) *Point {
		return &Point{Metric: &Metric{Name: "m"}, Identity: []Attribute{{Key: "hw.id", Text: id}}, Value: v}
	}
	for _, tt := range []struct {
		id        string
		value     float64
		now, want int
	}{
		{"g0", 10, 1, 1},
		{"g0", 12, 2, 1},
		{"g1", 12, 3, 3},
		{"g0", 12, 4, 1},
		{"g0", 3, 5, 5},
		{"g0", 4, 6, 5},
	} {
		start, ok := s.At(node, point(tt.id, tt.value), at(tt.now))
		assert.True(t, ok)
		assert.Equal(t, at(tt.want), start, "%+v", tt)
	}
	_, ok := s.At(node, point("g2", 1), at(7))
	assert.False(t, ok, "the table is full")
	s.Begin(at(8))
	start, ok := s.At(node, point("g0", 5), at(9))
	assert.True(t, ok)
	assert.Equal(t, at(9), start)
	counted := point("g1", 1)
	counted.Metric.FromZero = true
	start, ok = s.At(node, counted, at(9))
	assert.True(t, ok)
	assert.Equal(t, at(8), start, "counted since the pass began")
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Reasons() {
		assert.NotEmpty(t, r.String())
		assert.False(t, seen[r.String()], "%s names two reasons", r)
		seen[r.String()] = true
	}
	assert.Equal(t, "unknown", reasonCount.String())
}
