// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs/sysfs"

	"github.com/gpu-collector/gpu-collector/internal/pcibus"
)

const (
	// maxDevices are read of a node: 8 GPUs have 18 adapters, virtual functions left out.
	maxDevices = 64
	maxPorts   = 8 // of a device
	// maxFile is a page, the most that a file of sysfs has.
	maxFile = 4096
	// maxVPD is as much as the vital product data of a device can have (PCI Local Bus
	// specification 3.0, appendix I).
	maxVPD = 32 << 10
	// maxIgnored bounds the files that a device is remembered to refuse.
	maxIgnored = 1024
)

// Config of a Reader.
type Config struct {
	Sys string
	// Exclude are patterns of path.Match for names of devices and interfaces that are
	// never opened.
	Exclude []string
	// Management reads the management ports of GPU boards too.
	Management bool
	// Deadline of one device.
	Deadline time.Duration
}

// Reader reads the ports. Its Read must not be called concurrently.
type Reader struct {
	cfg     Config
	devices map[string]*device
	open    func(name string) (file, error) // os.Open, or a test's
}

type file interface {
	io.Reader
	io.Closer
}

// New returns a Reader that has read nothing yet.
func New(cfg Config) *Reader {
	return &Reader{cfg: cfg, devices: map[string]*device{}, open: func(name string) (file, error) {
		return os.Open(name) //nolint:gosec // G304: sysfs is where the operator says it is
	}}
}

// device is what is kept of one, between two readings.
type device struct {
	name, dir string
	rdma      bool
	excluded  bool
	// result is of a reading that is under way; nil when there is none. The goroutine that
	// reads owns all that follows until it has sent.
	result  chan reading
	ports   []*port // of RDMA, listed once
	link    *port   // the interface
	pci     string
	ignored map[string]bool // files that the device refuses
	buffer  []byte
	open    func(name string) (file, error)
}

// port is a directory with the counters that are in it.
type port struct {
	id, dir string
	table   []*Kind
	paths   []string
	highest float64
}

type reading struct {
	ports    []Port
	failures []Failure
	failed   bool // all of it
	managed  bool // it is a management port of a GPU board
}

// Read reads all ports, one device after the other. A device that does not answer by the
// deadline is left alone until it has.
func (r *Reader) Read(ctx context.Context) Report {
	var report Report
	seen := map[string]bool{}
	owned := map[string]bool{} // PCI devices that are RDMA devices
	for _, d := range r.list(&report, seen, owned) {
		if d.excluded || ctx.Err() != nil {
			if !d.excluded {
				report.Silent = append(report.Silent, d.name)
			}
			continue
		}
		r.read(ctx, d, &report)
	}
	for key, d := range r.devices {
		if !seen[key] && d.result == nil {
			delete(r.devices, key)
		}
	}
	return report
}

// list returns the devices in order, RDMA before interfaces.
func (r *Reader) list(report *Report, seen, owned map[string]bool) []*device {
	var list []*device
	root, err := sysfs.NewFS(r.cfg.Sys)
	if err != nil {
		return nil
	}
	rdma, err := root.InfiniBandClassDevices()
	noteListing(report, err)
	interfaces, err := root.NetClassDevices()
	noteListing(report, err)
	slices.Sort(rdma)
	slices.Sort(interfaces)
	for i, name := range slices.Concat(rdma, interfaces) {
		isRDMA, class := i < len(rdma), "net"
		if isRDMA {
			class = "infiniband"
		}
		dir := filepath.Join(r.cfg.Sys, "class", class, name)
		at, err := os.Readlink(filepath.Join(dir, "device"))
		if err != nil && !isRDMA {
			continue // a bridge, a tunnel, a container's: no hardware
		}
		pci := filepath.Base(at)
		if isRDMA {
			owned[pci] = true
		} else if owned[pci] {
			continue // a port of an RDMA device, which has it
		}
		if _, err := os.Lstat(filepath.Join(dir, "device", "physfn")); err == nil {
			continue // a virtual function, of which there may be hundreds
		}
		key := class + "/" + name
		d := r.devices[key]
		if d == nil {
			if len(list) >= maxDevices {
				report.Failures = append(report.Failures, Failure{Device: name, Cause: TooMany, Err: fmt.Errorf("more than %d devices", maxDevices)})
				continue
			}
			d = &device{name: name, dir: dir, rdma: isRDMA, ignored: map[string]bool{}, open: r.open}
			if pcibus.IsAddress(pci) {
				d.pci = pci
			}
			if pattern, ok := r.excludes(name); ok {
				d.excluded = true
				report.Excluded = append(report.Excluded, Excluded{name, "`exclude` has " + strconv.Quote(pattern)})
			}
			r.devices[key] = d
		}
		seen[key] = true
		list = append(list, d)
	}
	return list
}

func noteListing(report *Report, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		report.Failures = append(report.Failures, Failure{Cause: Unreadable, Err: err})
	}
}

func (r *Reader) excludes(name string) (string, bool) {
	for _, pattern := range r.cfg.Exclude {
		if ok, err := path.Match(pattern, name); err == nil && ok {
			return pattern, true
		}
	}
	return "", false
}

// read takes one device into the report. A reading that hangs goes on in its goroutine:
// the kernel lets nobody end it.
func (r *Reader) read(ctx context.Context, d *device, report *Report) {
	if d.result == nil {
		d.result = make(chan reading, 1)
		go func(result chan<- reading, managed bool) { result <- d.read(managed) }(d.result, r.cfg.Management)
	} else if len(d.result) == 0 { // it has hung before, and is not waited for
		report.Silent = append(report.Silent, d.name)
		return
	}
	deadline := time.NewTimer(r.cfg.Deadline)
	defer deadline.Stop()
	select {
	case got := <-d.result:
		d.result = nil
		report.Failures = append(report.Failures, got.failures...)
		switch {
		case got.managed:
			d.excluded = true
			report.Excluded = append(report.Excluded, Excluded{d.name, "it is a management port of a GPU board, by its vital product data"})
		case got.failed:
			report.Silent = append(report.Silent, d.name)
		default:
			report.Ports = append(report.Ports, got.ports...)
		}
	case <-deadline.C:
		report.Silent = append(report.Silent, d.name)
		report.Failures = append(report.Failures, Failure{Device: d.name, Cause: Hang, Err: fmt.Errorf("no answer after %v", r.cfg.Deadline)})
	case <-ctx.Done():
		report.Silent = append(report.Silent, d.name)
	}
}

// read reads the device; only its goroutine is in here.
func (d *device) read(managed bool) (got reading) {
	if d.ports == nil && d.link == nil {
		if !managed && d.isManagement() {
			return reading{managed: true}
		}
		if err := d.look(); err != nil {
			got.fail(d.name, "", err)
			got.failed = true
			return got
		}
	}
	rate, highest := d.pcie()
	for _, p := range d.ports {
		if out, ok := d.readRDMA(p, &got); ok {
			got.ports = append(got.ports, out)
		}
	}
	if d.link != nil && !d.rdma {
		got.ports = append(got.ports, d.readInterface(&got))
	}
	for i := range got.ports {
		got.ports[i].PCIeRate, got.ports[i].PCIeHighest = rate, highest
	}
	return got
}

// isManagement reports whether the device is a ConnectX-7 that NVIDIA's fabric manager
// reaches the NVLink switches of a board through: its function is restricted, and each
// counter that is read is a line in the kernel's log, `ACCESS_REG failed`. The vital
// product data tells it by the keyword SMDL with SW_MNG (NVIDIA Fabric Manager user guide,
// HGX B200).
func (d *device) isManagement() bool {
	if !d.rdma || !bytes.Equal(d.text("device/vendor"), []byte("0x15b3")) {
		return false
	}
	f, err := d.open(filepath.Join(d.dir, "device", "vpd"))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	data, _ := io.ReadAll(io.LimitReader(f, maxVPD)) // as far as it is readable
	return bytes.Contains(data, []byte("SW_MNG"))
}

// look lists the ports and the files that there are.
func (d *device) look() error {
	if !d.rdma {
		d.link = &port{id: d.name, dir: d.dir}
		d.link.find(ofLink)
		d.link.find(ofInterface)
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(d.dir, "ports"))
	if err != nil {
		return err
	}
	entries = entries[:min(len(entries), maxPorts)]
	ports := make([]*port, 0, len(entries))
	for _, entry := range entries {
		p := &port{id: d.name + "/" + entry.Name(), dir: filepath.Join(d.dir, "ports", entry.Name())}
		p.find(ofPort)
		ports = append(ports, p)
	}
	if len(ports) == 1 {
		of := &port{dir: d.dir}
		of.find(ofDevice)
		ports[0].add(of)
		if interfaces, err := os.ReadDir(filepath.Join(d.dir, "device", "net")); err == nil && len(interfaces) == 1 {
			d.link = &port{id: interfaces[0].Name(), dir: filepath.Join(d.dir, "device", "net", interfaces[0].Name())}
			d.link.find(ofLink)
			// The same event is counted once.
			if !slices.ContainsFunc(ports[0].table, func(k *Kind) bool {
				return slices.ContainsFunc(d.link.table, func(l *Kind) bool { return l.Instead == k.File })
			}) {
				ports[0].add(d.link)
			}
		}
	}
	d.ports = ports
	return nil
}

// find adds the counters of a table that are in the directory.
func (p *port) find(table []Kind) {
	there := map[string]map[string]bool{}
	for i := range table {
		k := &table[i]
		names := there[k.Dir]
		if names == nil {
			names = map[string]bool{}
			there[k.Dir] = names
			entries, err := os.ReadDir(filepath.Join(p.dir, k.Dir))
			if err != nil {
				continue
			}
			for _, entry := range entries {
				names[entry.Name()] = true
			}
		}
		if names[k.File] {
			p.table = append(p.table, k)
			p.paths = append(p.paths, filepath.Join(p.dir, k.Dir, k.File))
		}
	}
}

func (p *port) add(o *port) {
	p.table, p.paths = append(p.table, o.table...), append(p.paths, o.paths...)
}

const efaVendor = "0x1d0f"

// readRDMA reads a port, and returns false where it is gone.
func (d *device) readRDMA(p *port, got *reading) (out Port, ok bool) {
	if _, err := os.Lstat(p.dir); err != nil {
		return out, false
	}
	out = Port{ID: p.id, Device: d.name, PCI: d.pci, Layer: string(d.textOf(p, "link_layer"))}
	if state := d.need(p, "state", got); state != nil {
		if v, err := parseState(state); err != nil {
			got.fail(d.name, "state", err)
		} else {
			out.Up, out.UpKnown = active(v), true
		}
	}
	// An interface over InfiniBand may be down while the port is up.
	if d.link != nil && out.Layer != "InfiniBand" {
		out.Interface = d.link.id
		// EFA's ports are always ACTIVE.
		if out.Layer != "Ethernet" && string(d.text("device/vendor")) == efaVendor {
			out.Up, out.UpKnown = d.carrier()
		}
	}
	if text := d.need(p, "rate", got); text != nil {
		rate, lanes, err := parseRate(text)
		switch {
		case err != nil:
			got.fail(d.name, "rate", err)
		case out.Up || !out.UpKnown: // a port that is down tells any rate
			out.Rate, out.Lanes = rate, lanes
		}
	}
	d.finish(p, &out, got)
	return out, true
}

func (d *device) readInterface(got *reading) Port {
	p := d.link
	out := Port{ID: p.id, Device: d.name, PCI: d.pci, Interface: d.name, Layer: "Ethernet"}
	if string(d.textOf(p, "type")) == "32" { // ARPHRD_INFINIBAND, without its RDMA device
		out.Layer = "InfiniBand"
	}
	out.Up, out.UpKnown = d.carrier()
	if out.Up {
		if rate, ok := parseSpeed(d.textOf(p, "speed")); ok {
			out.Rate = rate
		}
	}
	d.finish(p, &out, got)
	return out
}

// carrier reports whether the interface has a link. One that its operator has taken down
// does not say: EINVAL.
func (d *device) carrier() (up, known bool) {
	switch string(d.textOf(d.link, "carrier")) {
	case "1":
		state := string(d.textOf(d.link, "operstate"))
		return state != "down" && state != "lowerlayerdown", true
	case "0":
		return false, true
	}
	return false, string(d.textOf(d.link, "operstate")) == "down"
}

func (d *device) finish(p *port, out *Port, got *reading) {
	p.highest = max(p.highest, out.Rate)
	out.Highest = p.highest
	out.Counters = make([]Counter, 0, len(p.paths))
	for i, name := range p.paths {
		text, err := d.readFile(name)
		if err != nil {
			got.fail(d.name, p.table[i].File, err)
			continue
		}
		if text == nil || bytes.HasPrefix(text, []byte("N/A")) { // "N/A (no PMA)", before 4.20
			continue
		}
		v, err := parseCount(text)
		if err != nil {
			got.fail(d.name, p.table[i].File, err)
			continue
		}
		k := p.table[i]
		if k.Factor > 1 {
			v *= k.Factor
		}
		out.Counters = append(out.Counters, Counter{k, v})
	}
}

func (d *device) pcie() (rate, highest float64) {
	if d.pci == "" {
		return 0, 0
	}
	link := func(which string) float64 {
		speed := bytes.Clone(d.text("device/" + which + "_link_speed"))
		v, _ := parsePCIe(speed, d.text("device/"+which+"_link_width"))
		return v
	}
	return link("current"), link("max")
}

// text is what a file beside the counters says, nothing where it cannot be read.
func (d *device) text(name string) []byte {
	text, _ := d.readFile(filepath.Join(d.dir, name))
	return text
}

func (d *device) textOf(p *port, name string) []byte {
	text, _ := d.readFile(filepath.Join(p.dir, name))
	return text
}

// need reads a file that each port has.
func (d *device) need(p *port, name string, got *reading) []byte {
	text, err := d.readFile(filepath.Join(p.dir, name))
	if err != nil {
		got.fail(d.name, name, err)
	}
	return text
}

// readFile returns what a file says, without space around it, until the next call; nil
// without an error where the device has nothing to say. It asks a device no second time
// for what the device refuses: each time may be a line in the kernel's log.
func (d *device) readFile(name string) ([]byte, error) {
	if d.ignored[name] {
		return nil, nil
	}
	f, err := d.open(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if d.buffer == nil {
		d.buffer = make([]byte, maxFile)
	}
	n, err := f.Read(d.buffer)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return bytes.TrimSpace(d.buffer[:n]), nil
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENODATA), errors.Is(err, syscall.ENOENT):
		// An interface that is down refuses its carrier and speed until it is up.
		if len(d.ignored) < maxIgnored && !strings.HasSuffix(name, "/carrier") && !strings.HasSuffix(name, "/speed") {
			d.ignored[name] = true
		}
		return nil, nil
	default:
		return nil, err
	}
}

func (got *reading) fail(device, file string, err error) {
	cause := Unreadable
	if errors.Is(err, errState) || errors.Is(err, errRate) || errors.Is(err, errNumber) {
		cause = Malformed
	}
	got.failures = append(got.failures, Failure{Device: device, File: file, Cause: cause, Err: err})
}
