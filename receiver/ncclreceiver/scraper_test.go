// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"
)

// bench is a node with one folder, a /proc of its own and a clock.
type bench struct {
	*ncclScraper
	t    *testing.T
	dir  string
	time time.Time
}

func newBench(t *testing.T, change ...func(*Config)) *bench {
	b := &bench{t: t, dir: t.TempDir(), time: time.Unix(1_800_000_000, 0)}
	cfg := createDefaultConfig().(*Config)
	cfg.Directories, cfg.ProcPath = []string{b.dir}, t.TempDir()
	for _, c := range change {
		c(cfg)
	}
	require.NoError(t, cfg.Validate())
	require.NoError(t, os.WriteFile(filepath.Join(cfg.ProcPath, "stat"), []byte("btime 1000000000\n"), 0o600))
	var err error
	b.ncclScraper, err = newScraper(cfg, receivertest.NewNopSettings(metadata.Type))
	require.NoError(t, err)
	b.procs.host, b.gpus = "vm", &gpuholders.Book{}
	b.now = func() time.Time { return b.time }
	b.ask = func(context.Context, string) (*ras.Report, error) { return nil, errors.New("not asked here") }
	t.Cleanup(func() { assert.NoError(t, b.shutdown(t.Context())) })
	return b
}

// run makes a process whose start is so many clock ticks after boot.
func (b *bench) run(pid, start int, environ, cgroup string) {
	dir := filepath.Join(b.cfg.ProcPath, strconv.Itoa(pid))
	require.NoError(b.t, os.MkdirAll(filepath.Join(dir, "fd"), 0o700))
	for name, text := range map[string]string{
		"stat":    fmt.Sprintf("%d (python) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0", pid, start),
		"status":  fmt.Sprintf("Name:\tpython\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", os.Getuid()),
		"environ": environ, "cgroup": cgroup,
	} {
		require.NoError(b.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

func (b *bench) end(pid int) {
	require.NoError(b.t, os.RemoveAll(filepath.Join(b.cfg.ProcPath, strconv.Itoa(pid))))
}

// write adds to a file, at the bench's time.
func (b *bench) write(name string, text []byte) {
	path := filepath.Join(b.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(b.t, err)
	_, err = f.Write(text)
	require.NoError(b.t, errors.Join(err, f.Close()))
	require.NoError(b.t, os.Chtimes(path, b.time, b.time))
}

// points of a metric, by an attribute. Those that say that a series has ended are -1.
func (b *bench) points(md pmetric.Metrics, name, by string) map[string]float64 {
	all := map[string]float64{}
	each(md, name, func(dp pmetric.NumberDataPoint) {
		key, _ := dp.Attributes().Get(by)
		_, twice := all[key.AsString()]
		assert.False(b.t, twice, "%s of %s twice", name, key.AsString())
		switch {
		case dp.Flags().NoRecordedValue():
			all[key.AsString()] = -1
		case dp.ValueType() == pmetric.NumberDataPointValueTypeInt:
			all[key.AsString()] = float64(dp.IntValue())
		default:
			all[key.AsString()] = dp.DoubleValue()
		}
	})
	return all
}

func each(md pmetric.Metrics, name string, do func(pmetric.NumberDataPoint)) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() != name {
					continue
				}
				points := pmetric.NewNumberDataPointSlice()
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
				} else {
					points = m.Gauge().DataPoints()
				}
				for _, dp := range points.All() {
					do(dp)
				}
			}
		}
	}
}

func (b *bench) scrape() pmetric.Metrics {
	md, err := b.ncclScraper.scrape(b.t.Context())
	require.NoError(b.t, err)
	return md
}

// recorded returns the seconds of a real recording: eight ranks of one process, see
// testdata/README.md.
func recorded(t *testing.T, name string) (seconds [][]byte, first time.Time) {
	f, err := os.Open(filepath.Join("testdata", name+".log.gz"))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	text, err := io.ReadAll(z)
	require.NoError(t, err)
	dumped := regexp.MustCompile(`"dump_timestamp_us":(\d+)`)
	begin := int64(0)
	for line := range bytes.Lines(text) {
		at, err := strconv.ParseInt(string(dumped.FindSubmatch(line)[1]), 10, 64)
		require.NoError(t, err)
		if begin == 0 {
			begin = at
		}
		for int64(len(seconds)) <= (at-begin)/1e6 {
			seconds = append(seconds, nil)
		}
		seconds[(at-begin)/1e6] = append(seconds[(at-begin)/1e6], line...)
	}
	return seconds, time.UnixMicro(begin)
}

func TestRecordings(t *testing.T) {
	for name, slow := range map[string]string{"slow-rank3": "3", "even": ""} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			seconds, first := recorded(t, name)
			b.time = first
			b.write("vm-pid14702.log", nil)
			b.scrape()
			for i, text := range seconds {
				b.time = first.Add(time.Duration(i+1) * time.Second)
				b.write("vm-pid14702.log", text)
				shares := b.points(b.scrape(), semconv.MetricCollectiveTimeShare, semconv.AttrCommunicatorRank)
				t.Log(i, shares)
				_ = slow
			}
		})
	}
}
