// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakesys"
)

func newReader(t *fakesys.Tree, exclude ...string) *Reader {
	return New(Config{Sys: t.Sys, Exclude: exclude, Deadline: time.Second})
}

// values are the counters of a port by file.
func values(p *Port) map[string]uint64 {
	m := map[string]uint64{}
	for i := range p.Counters {
		m[p.Counters[i].File] = p.Counters[i].Value
	}
	return m
}

func ids(ports []Port) (ids []string) {
	for i := range ports {
		ids = append(ids, ports[i].ID)
	}
	return ids
}

func TestInfiniBand(t *testing.T) {
	tree := fakesys.New(t)
	port := tree.Rail(2)[0]
	tree.Write(port+"/counters/symbol_error", "7\n")
	tree.Write(port+"/rate", "200 Gb/sec (2X NDR)\n")
	tree.Write(port+"/hw_counters/out_of_sequence", "9\n")
	r := newReader(tree)
	got := r.Read(t.Context())
	require.Empty(t, got.Failures)
	require.Equal(t, []string{"mlx5_0/1", "mlx5_1/1"}, ids(got.Ports))
	p := &got.Ports[0]
	assert.Equal(t, "0000:04:00.0", p.PCI)
	assert.True(t, p.Up && p.UpKnown)
	assert.InDelta(t, 25e9, p.Rate, 0)
	assert.Equal(t, 2, p.Lanes)
	assert.InDelta(t, 50e9, got.Ports[1].Rate, 0)
	assert.InEpsilon(t, 63e9, p.PCIeRate, 0.01)
	v := values(p)
	assert.EqualValues(t, 7, v["symbol_error"])
	assert.EqualValues(t, 9, v["out_of_sequence"])
	assert.EqualValues(t, 4000, v["port_rcv_data"], "a word has four octets")
	assert.NotContains(t, v, "rx_read_requests", "what nobody needs is not read")

	tree.Write(port+"/rate", "400 Gb/sec (4X NDR)\n")
	p = &r.Read(t.Context()).Ports[0]
	assert.InDelta(t, 50e9, p.Rate, 0)
	tree.Write(port+"/state", "1: DOWN\n")
	p = &r.Read(t.Context()).Ports[0]
	assert.False(t, p.Up)
	assert.True(t, p.UpKnown)
	assert.Zero(t, p.Rate, "a port that is down tells any rate")
	assert.InDelta(t, 50e9, p.Highest, 0)
}

// A counter of 4, 8, 16 or 32 bits stops at its maximum.
func TestCountersAtTheirMaximum(t *testing.T) {
	tree := fakesys.New(t)
	port := tree.Rail(1)[0]
	full := map[string]string{"local_link_integrity_errors": "15", "link_downed": "255", "symbol_error": "65535", "port_xmit_wait": "4294967295"}
	for file, v := range full {
		tree.Write(port+"/counters/"+file, v+"\n")
	}
	tree.Write(port+"/counters/port_rcv_errors", "255\n")
	tree.Write(port+"/counters/port_xmit_data", "4294967295\n")
	p := &newReader(tree).Read(t.Context()).Ports[0]
	for i := range p.Counters {
		c := &p.Counters[i]
		assert.Equal(t, full[c.File] != "", c.Full(), c.File)
	}
	assert.EqualValues(t, 4*4294967295, values(p)["port_xmit_data"])
}

// An EFA port is always ACTIVE: its interface knows, and its counters have names of their
// own, some of the device.
func TestEFA(t *testing.T) {
	tree := fakesys.New(t)
	pci := tree.PCI("pci0000:00/0000:00:1d.0", "0x1d0f", "0x020000", 0)
	port := tree.RDMA("rdmap0s29", pci, "Unknown", map[string]string{
		"hw_counters/rx_drops": "3", "hw_counters/retrans_pkts": "5", "hw_counters/tx_bytes": "800", "hw_counters/tx_pkts": "8",
	})
	tree.Write(filepath.Dir(filepath.Dir(port))+"/hw_counters/no_completion_cmds", "1\n")
	tree.Write(port+"/rate", "100 Gb/sec (4X EDR)\n")
	dir := tree.Interface("ens29", pci)
	r := newReader(tree)
	got := r.Read(t.Context())
	require.Equal(t, []string{"rdmap0s29/1"}, ids(got.Ports), "the interface is no second port")
	p := &got.Ports[0]
	assert.True(t, p.Up)
	assert.Equal(t, "ens29", p.Interface)
	v := values(p)
	assert.EqualValues(t, 3, v["rx_drops"])
	assert.EqualValues(t, 5, v["retrans_pkts"])
	assert.EqualValues(t, 1, v["no_completion_cmds"])
	assert.EqualValues(t, 800, v["tx_bytes"])
	assert.Contains(t, v, "carrier_down_count", "it has no link_downed")

	tree.Write(dir+"/carrier", "0\n")
	assert.False(t, r.Read(t.Context()).Ports[0].Up)
}

func TestRoCECountsALinkThatWentDownOnce(t *testing.T) {
	tree := fakesys.New(t)
	pci := tree.PCI("pci0000:00/0000:00:1d.0", "0x15b3", "0x020000", 0)
	tree.RDMA("mlx5_0", pci, "Ethernet", fakesys.Healthy())
	tree.Interface("ens29", pci)
	got := newReader(tree).Read(t.Context())
	require.Equal(t, []string{"mlx5_0/1"}, ids(got.Ports))
	v := values(&got.Ports[0])
	assert.Contains(t, v, "link_downed")
	assert.NotContains(t, v, "carrier_down_count")
	assert.Equal(t, "ens29", got.Ports[0].Interface)
}

func TestEthernet(t *testing.T) {
	tree := fakesys.New(t)
	dir := tree.Interface("eth0", tree.PCI("pci0000:00/0000:00:1f.0", "0x8086", "0x020000", 0))
	tree.Write("class/net/lo/carrier", "1\n") // no device
	tree.Write(dir+"/statistics/rx_crc_errors", "4\n")
	r := newReader(tree)
	got := r.Read(t.Context())
	require.Equal(t, []string{"eth0"}, ids(got.Ports))
	p := &got.Ports[0]
	assert.InDelta(t, 12.5e9, p.Rate, 0)
	assert.True(t, p.Up)
	assert.EqualValues(t, 4, values(p)["rx_crc_errors"])
	for _, unknown := range []string{"-1", "4294967295", "", "0"} {
		tree.Write(dir+"/speed", unknown+"\n")
		assert.Zero(t, r.Read(t.Context()).Ports[0].Rate, unknown)
	}
	tree.Write(dir+"/carrier", "")
	tree.Write(dir+"/operstate", "down\n")
	p = &r.Read(t.Context()).Ports[0]
	assert.False(t, p.Up)
	assert.True(t, p.UpKnown)
}

// Virtual functions are left out: a node may have hundreds.
func TestVirtualFunctions(t *testing.T) {
	tree := fakesys.New(t)
	pci := tree.PCI("pci0000:00/0000:00:1f.1", "0x8086", "0x020000", 0)
	tree.Interface("eth1", pci)
	tree.Write(pci+"/physfn", "")
	assert.Empty(t, newReader(tree).Read(t.Context()).Ports)
}

// One file that cannot be read, or that says nonsense, costs that file alone.
func TestBadFiles(t *testing.T) {
	tree := fakesys.New(t)
	port := tree.Rail(2)[1]
	tree.Write(port+"/counters/symbol_error", "N/A (no PMA)\n")
	tree.Write(port+"/counters/link_downed", "-3\n")
	tree.Write(port+"/state", "who knows\n")
	require.NoError(t, os.Remove(filepath.Join(tree.Sys, port, "counters", "port_rcv_errors")))
	require.NoError(t, os.Mkdir(filepath.Join(tree.Sys, port, "counters", "port_rcv_errors"), 0o750)) // EISDIR
	got := newReader(tree).Read(t.Context())
	require.Len(t, got.Ports, 2)
	p := &got.Ports[1]
	assert.False(t, p.UpKnown)
	v := values(p)
	assert.NotContains(t, v, "symbol_error")
	assert.NotContains(t, v, "link_downed")
	assert.Contains(t, v, "link_error_recovery")
	var causes []string
	for _, f := range got.Failures {
		assert.Equal(t, "mlx5_1", f.Device)
		causes = append(causes, f.File+" "+string(f.Cause))
	}
	assert.ElementsMatch(t, []string{"state malformed", "link_downed malformed", "port_rcv_errors unreadable"}, causes)
}

// einval is a file of a device that refuses.
type einval struct{ err error }

func (e einval) Read([]byte) (int, error) { return 0, &os.PathError{Op: "read", Err: e.err} }
func (einval) Close() error               { return nil }

// A device is not asked again for what it refused, since each time is a line in the
// kernel's log; one that was busy is.
func TestWhatIsRefusedIsNotAskedAgain(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(1)
	for _, tt := range []struct {
		err  error
		asks int
	}{{syscall.EINVAL, 1}, {syscall.ENODATA, 1}, {syscall.EOPNOTSUPP, 1}, {syscall.EIO, 3}} {
		r := newReader(tree)
		asked, open := 0, r.open
		r.open = func(name string) (file, error) {
			if filepath.Base(name) == "symbol_error" {
				asked++
				return einval{tt.err}, nil
			}
			return open(name)
		}
		for range 3 {
			got := r.Read(t.Context())
			require.Len(t, got.Ports, 1)
			assert.Equal(t, errors.Is(tt.err, syscall.EIO), len(got.Failures) == 1)
		}
		assert.Equal(t, tt.asks, asked, tt.err)
	}
}

func TestAPortThatVanishes(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(3)
	r := newReader(tree)
	require.Len(t, r.Read(t.Context()).Ports, 3)
	tree.Remove("infiniband", "mlx5_1")
	got := r.Read(t.Context())
	assert.Equal(t, []string{"mlx5_0/1", "mlx5_2/1"}, ids(got.Ports))
	assert.Empty(t, got.Silent)
	assert.Len(t, r.devices, 2, "nothing is kept of it")
}

// A device that hangs holds one reading up, by its deadline, and never the others. Its one
// reading goes on, and no other is begun.
func TestADeviceThatHangs(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(3)
	synctest.Test(t, func(t *testing.T) {
		r := newReader(tree)
		var opened atomic.Int32
		answer, open := make(chan bool), r.open
		r.open = func(name string) (file, error) {
			if strings.Contains(name, "mlx5_1") && strings.HasSuffix(name, "link_layer") {
				opened.Add(1)
				<-answer
			}
			return open(name)
		}
		began := time.Now()
		for i := range 3 {
			got := r.Read(context.Background())
			assert.Equal(t, []string{"mlx5_0/1", "mlx5_2/1"}, ids(got.Ports))
			assert.Equal(t, []string{"mlx5_1"}, got.Silent)
			assert.Equal(t, i == 0, len(got.Failures) == 1 && got.Failures[0].Cause == Hang, "told once")
			assert.Equal(t, time.Second, time.Since(began), "waited for once")
		}
		assert.EqualValues(t, 1, opened.Load())
		close(answer)
		synctest.Wait()
		assert.Len(t, r.Read(context.Background()).Ports, 3)
		assert.Len(t, r.Read(context.Background()).Ports, 3)
		assert.EqualValues(t, 2, opened.Load(), "the first of these two had waited")
	})
}

// The controller's end of the scrape ends the waiting.
func TestReadingEndsWithItsContext(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := newReader(tree)
	got := r.Read(ctx)
	assert.Empty(t, got.Ports)
	assert.Equal(t, []string{"mlx5_0", "mlx5_1"}, got.Silent)
}

func TestNumberOfDevicesIsBounded(t *testing.T) {
	tree := fakesys.New(t)
	for i := range maxDevices + 2 {
		tree.Interface(fmt.Sprintf("eth%03d", i), tree.PCI(fmt.Sprintf("pci0000:00/0000:%02x:00.0", i), "0x8086", "0x020000", 0))
	}
	got := newReader(tree).Read(t.Context())
	assert.Len(t, got.Ports, maxDevices)
	assert.Len(t, got.Failures, 2)
	assert.Equal(t, TooMany, got.Failures[0].Cause)
}

func TestDefaultRoute(t *testing.T) {
	tree := fakesys.New(t)
	tree.WriteProc("net/route", "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"+
		"bond0.7\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"+
		"ens2\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n")
	tree.Write("class/net/bond0.7/lower_bond0", "")
	tree.Write("class/net/bond0/lower_eth0", "")
	tree.Write("class/net/bond0/lower_eth1", "")
	got, err := DefaultRoute(tree.Proc, tree.Sys)
	require.NoError(t, err)
	assert.Equal(t, map[string]bool{"bond0.7": true, "bond0": true, "eth0": true, "eth1": true}, got)
}

func TestNear(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(4)
	got := FindNear(tree.Sys, newReader(tree).Read(t.Context()).Ports, nil)
	assert.Equal(t, []Near{
		{"00000000:03:00.0", "mlx5_0/1", "switch"},
		{"00000000:13:00.0", "mlx5_1/1", "switch"},
		{"00000000:23:00.0", "mlx5_2/1", "switch"},
		{"00000000:33:00.0", "mlx5_3/1", "switch"},
	}, got)
}

// No two kinds of one device have one name: the name tells them apart.
func TestKindsHaveNames(t *testing.T) {
	for _, table := range [][]Kind{append(append(append([]Kind{}, ofPort...), ofDevice...), ofLink...), append(append([]Kind{}, ofLink...), ofInterface...)} {
		seen := map[string]bool{}
		for i := range table {
			assert.False(t, seen[table[i].File], table[i].File)
			seen[table[i].File] = true
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"4: ACTIVE", "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)", "18446744073709551615", "-1", "32.0 GT/s PCIe", "NaN Gb/sec", "1e9 Gb/sec (X"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = parseState(text)
		_, _ = parseCount(text)
		if rate, lanes, err := parseRate(text); err == nil {
			assert.True(t, rate >= 0 && rate <= mostGigabits*bytesPerGigabit && lanes >= 0 && lanes < 256)
		}
		if rate, ok := parseSpeed(text); ok {
			assert.True(t, rate > 0 && rate <= mostGigabits*bytesPerGigabit)
		}
		if rate, ok := parsePCIe(text, []byte("16")); ok {
			assert.True(t, rate > 0 && rate < 1e14)
		}
	})
}

// A node of 16 ports with 60 files each must take less than 10 ms.
func BenchmarkRead(b *testing.B) {
	tree := fakesys.New(b)
	for i, port := range tree.Rail(16) {
		for j := range 20 {
			tree.Write(fmt.Sprintf("%s/hw_counters/other_%d", port, j), strconv.Itoa(i))
		}
	}
	r := newReader(tree)
	require.Len(b, r.Read(b.Context()).Ports, 16)
	b.ReportAllocs()
	for b.Loop() {
		r.Read(b.Context())
	}
}
