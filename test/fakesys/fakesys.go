// SPDX-License-Identifier: Apache-2.0

// Package fakesys makes trees that look like the /sys and /proc of a GPU node.
package fakesys // import "github.com/gpu-collector/gpu-collector/test/fakesys"

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Tree is a node's.
type Tree struct {
	tb   testing.TB
	Sys  string
	Proc string
}

// New returns the tree of a node without devices.
func New(tb testing.TB) *Tree {
	tb.Helper()
	root := tb.TempDir()
	t := &Tree{tb: tb, Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")}
	for _, dir := range []string{"class/infiniband", "class/net", "bus/pci/devices"} {
		require.NoError(tb, os.MkdirAll(filepath.Join(t.Sys, dir), 0o750))
	}
	for name, text := range map[string]string{
		"loadavg":         "12.50 9.00 8.00 3/900 4242\n",
		"meminfo":         "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n",
		"stat":            Stat(100, 50, 800, 10, 40),
		"pressure/cpu":    pressure(1.25),
		"pressure/memory": pressure(2.5),
		"pressure/io":     pressure(5),
		"net/route":       "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
	} {
		t.WriteProc(name, text)
	}
	return t
}

func pressure(percent float64) string {
	line := fmt.Sprintf("avg10=%.2f avg60=0.00 avg300=0.00 total=0\n", percent)
	return "some " + line + "full " + line
}

// Stat is /proc/stat with these times of all CPUs, in hundredths of a second.
func Stat(user, system, idle, iowait, steal int) string {
	return fmt.Sprintf("cpu  %d 0 %d %d %d 0 0 %d 0 0\nbtime 1\n", user, system, idle, iowait, steal)
}

// WriteProc writes a file below /proc, and Write one below /sys.
func (t *Tree) WriteProc(name, text string) { t.write(filepath.Join(t.Proc, name), text) }

// Write writes a file below /sys.
func (t *Tree) Write(name, text string) { t.write(filepath.Join(t.Sys, name), text) }

func (t *Tree) write(name, text string) {
	t.tb.Helper()
	require.NoError(t.tb, os.MkdirAll(filepath.Dir(name), 0o750))
	require.NoError(t.tb, os.WriteFile(name, []byte(text), 0o600))
}

func (t *Tree) link(target, name string) {
	t.tb.Helper()
	name = filepath.Join(t.Sys, name)
	target = filepath.Join(t.Sys, target)
	above, err := filepath.Rel(filepath.Dir(name), filepath.Dir(target))
	require.NoError(t.tb, err)
	target = above + "/" + filepath.Base(target) // as sysfs writes it, with the name at the end
	require.NoError(t.tb, os.MkdirAll(filepath.Dir(name), 0o750))
	require.NoError(t.tb, os.Symlink(target, name))
}

// PCI makes a device below the bridges of its path, such as
// pci0000:00/0000:00:01.0/0000:01:00.0, and returns its directory.
func (t *Tree) PCI(path, vendor, class string, numa int) string {
	t.tb.Helper()
	dir := "devices/" + path
	for name, text := range map[string]string{
		"vendor": vendor, "class": class, "numa_node": strconv.Itoa(numa),
		"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
	} {
		t.Write(dir+"/"+name, text+"\n")
	}
	t.link(dir, "bus/pci/devices/"+filepath.Base(path))
	return dir
}

// GPU makes one of NVIDIA's.
func (t *Tree) GPU(path string, numa int) { t.PCI(path, "0x10de", "0x030200", numa) }

// Healthy are the counters of an InfiniBand port under load.
func Healthy() map[string]string {
	files := map[string]string{}
	for name := range strings.FieldsSeq(`symbol_error link_error_recovery link_downed local_link_integrity_errors excessive_buffer_overrun_errors
		port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_rcv_constraint_errors port_xmit_discards
		port_xmit_constraint_errors port_xmit_wait VL15_dropped multicast_rcv_packets multicast_xmit_packets`) {
		files["counters/"+name] = "0"
	}
	for name, v := range map[string]string{"port_rcv_data": "1000", "port_xmit_data": "2000", "port_rcv_packets": "30", "port_xmit_packets": "40"} {
		files["counters/"+name] = v
	}
	for name := range strings.FieldsSeq(`duplicate_request implied_nak_seq_err local_ack_timeout_err out_of_buffer out_of_sequence packet_seq_err
		rnr_nak_retry_err req_transport_retries_exceeded roce_adp_retrans roce_slow_restart np_cnp_sent np_ecn_marked_roce_packets
		rp_cnp_handled rp_cnp_ignored rx_read_requests rx_write_requests rx_atomic_requests req_cqe_error resp_cqe_error lifespan`) {
		files["hw_counters/"+name] = "0"
	}
	return files
}

// RDMA makes an RDMA device with one port below a PCI device, and returns the directory of
// the port. layer is InfiniBand, Ethernet or Unknown.
func (t *Tree) RDMA(name, pci, layer string, counters map[string]string) string {
	t.tb.Helper()
	device := pci + "/infiniband/" + name
	t.link(device, "class/infiniband/"+name)
	t.link(pci, device+"/device")
	port := device + "/ports/1"
	for file, text := range map[string]string{
		"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": layer,
	} {
		t.Write(port+"/"+file, text+"\n")
	}
	for file, text := range counters {
		t.Write(port+"/"+file, text+"\n")
	}
	return port
}

// Interface makes a network interface of a PCI device that is up, and returns its
// directory.
func (t *Tree) Interface(name, pci string) string {
	t.tb.Helper()
	dir := pci + "/net/" + name
	t.link(dir, "class/net/"+name)
	t.link(pci, dir+"/device")
	for file, text := range map[string]string{
		"type": "1", "operstate": "up", "carrier": "1", "speed": "100000", "carrier_changes": "2", "carrier_down_count": "0",
		"statistics/rx_bytes": "500", "statistics/tx_bytes": "600", "statistics/rx_packets": "5", "statistics/tx_packets": "6",
		"statistics/rx_errors": "0", "statistics/tx_errors": "0", "statistics/rx_crc_errors": "0", "statistics/rx_missed_errors": "0",
		"statistics/tx_carrier_errors": "0",
	} {
		t.Write(dir+"/"+file, text+"\n")
	}
	return dir
}

// Remove takes a device or interface off its class, as when its driver lets go of it.
func (t *Tree) Remove(class, name string) {
	t.tb.Helper()
	link := filepath.Join(t.Sys, "class", class, name)
	dir, err := filepath.EvalSymlinks(link)
	require.NoError(t.tb, err)
	require.NoError(t.tb, os.Remove(link))
	require.NoError(t.tb, os.RemoveAll(dir))
}

// Rail makes n pairs of a GPU and an InfiniBand adapter, mlx5_0 and so on, each pair below
// a PCIe switch of its own, and returns the directories of the ports.
func (t *Tree) Rail(n int) []string {
	t.tb.Helper()
	ports := make([]string, n)
	for i := range n {
		above := fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/", 0x10*i, 0x10*i, 0x10*i+1)
		t.GPU(above+fmt.Sprintf("0000:%02x:00.0/0000:%02x:00.0", 0x10*i+2, 0x10*i+3), i*2/n)
		nic := t.PCI(above+fmt.Sprintf("0000:%02x:01.0/0000:%02x:00.0", 0x10*i+2, 0x10*i+4), "0x15b3", "0x020700", i*2/n)
		ports[i] = t.RDMA(fmt.Sprintf("mlx5_%d", i), nic, "InfiniBand", Healthy())
	}
	return ports
}
