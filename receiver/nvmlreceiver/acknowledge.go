// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

const (
	// maxAcknowledgeFile bounds the file: a line for each of 1024 GPUs and slices.
	maxAcknowledgeFile = 64 << 10
	// allGPUs stands for every GPU in the file.
	allGPUs = roster.All
)

// acknowledgement is one line of the file. Without a code it is of everything.
type acknowledgement struct {
	line int
	gpu  string // UUID, PCI address or allGPUs
	code gpuhealth.Opt[uint64]
}

// acknowledger reads a file that names the GPUs an operator has dealt with. A file
// needs no access to the node's network, and the node's own permissions govern who may
// write it. The acknowledger removes the file once read, or remembers it where that
// is not allowed.
type acknowledger struct {
	path string
	log  *zap.Logger

	seen fs.FileInfo // of the last look
	done fs.FileInfo // was read, or cannot be

	failing bool
}

// same reports whether a file is not another one of the same name.
func same(a, b fs.FileInfo) bool {
	return b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// read returns what the file acknowledges, once. A file is read when two looks
// in a row found it the same, so that no line is read in half.
func (a *acknowledger) read() []acknowledgement {
	if a.path == "" {
		return nil
	}
	info, err := os.Lstat(a.path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing && !a.failing {
		a.log.Warn("the file of acknowledgements cannot be looked at", zap.Error(err))
	}
	a.failing = err != nil && !missing
	if err != nil {
		a.seen, a.done = nil, nil
		return nil
	}
	if same(info, a.done) {
		return nil
	}
	if !same(info, a.seen) {
		a.seen = info
		return nil
	}
	a.done = info
	text, err := regularFile(a.path, maxAcknowledgeFile)
	if err != nil {
		a.log.Warn("the file of acknowledgements is not used", zap.Error(err))
		return nil
	}
	if len(text) == 0 {
		return nil // its writer has not come to it yet
	}
	acks, mistakes := parseAcknowledgements(text)
	for _, mistake := range mistakes {
		a.log.Warn("a line of the file of acknowledgements is not understood", zap.Error(mistake))
	}
	if err = os.Remove(a.path); err != nil {
		a.log.Info("the file of acknowledgements cannot be removed; it is read again when it changes", zap.Error(err))
		return acks
	}
	// The next file may get the inode of this one, and its time within a tick of the kernel.
	a.seen, a.done = nil, nil
	return acks
}

// regularFile reads a file that others may write: at most so many bytes of it.
func regularFile(path string, most int64) ([]byte, error) {
	// It refuses links, and does not wait for the writer of a pipe.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // G304: the configuration names the path
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file: %v", path, info.Mode())
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes: it may have %d", path, info.Size(), most)
	}
	return io.ReadAll(io.LimitReader(file, most))
}

// pciAddress is that of a word in the form of sysfs, empty for any other word. The kernel log
// writes it as `PCI:0000:1b:00`, without the function.
func pciAddress(word string) string {
	word = strings.TrimPrefix(word, "PCI:")
	return cmp.Or(roster.Address(word), roster.Address(word+".0"))
}

// parseAcknowledgements reads lines of a GPU's UUID or PCI address, or `all`, and a Xid
// that may be left out. The mistakes have the number of their line, which begins with 1.
func parseAcknowledgements(text []byte) (acks []acknowledgement, mistakes []error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxAcknowledgeFile+1)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		ack := acknowledgement{line: n, gpu: words[0]}
		if address := pciAddress(words[0]); address != "" {
			ack.gpu = address
		} else if ack.gpu != allGPUs && (!strings.HasPrefix(ack.gpu, "GPU-") || !gpuhealth.ValidUUID(ack.gpu)) {
			mistakes = append(mistakes, fmt.Errorf("line %d: %.64q is neither the UUID of a GPU nor its PCI address nor %q", n, ack.gpu, allGPUs))
			continue
		}
		if len(words) > 2 {
			mistakes = append(mistakes, fmt.Errorf("line %d: it has %d words; it may have a GPU and a Xid", n, len(words)))
			continue
		}
		if len(words) == 2 {
			code, err := strconv.ParseUint(words[1], 10, 32)
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("line %d: %.64q is no Xid; it has to be a number", n, words[1]))
				continue
			}
			ack.code = gpuhealth.Some(code)
		}
		acks = append(acks, ack)
	}
	return acks, mistakes
}

// acknowledge applies the operator's file to the monitor and the roster, and returns
// the GPUs that it names.
func (s *gpuScraper) acknowledge(samples []gpuhealth.Sample) map[string]bool {
	acknowledged := map[string]bool{}
	for _, ack := range s.acks.read() {
		known := false
		for i := range samples {
			uuid, address := samples[i].UUID, roster.Address(samples[i].PCIBusID)
			if samples[i].Parent != "" || ack.gpu != allGPUs && ack.gpu != uuid && ack.gpu != address {
				continue
			}
			known = true
			of := zap.String("of", "everything")
			if ack.code.OK {
				of = zap.Uint64("xid", ack.code.V)
			}
			if s.monitor.Acknowledge(uuid, ack.code) {
				acknowledged[uuid] = true
				s.set.Logger.Info("an operator has acknowledged the state of a GPU", zap.String("gpu", uuid), of)
			}
		}
		if !ack.code.OK {
			for _, missing := range s.roster.Acknowledge(ack.gpu) {
				known = true
				s.set.Logger.Info("an operator has acknowledged that a GPU is missing", zap.String("gpu", missing))
			}
		}
		if !known {
			s.set.Logger.Warn("a GPU that is acknowledged is not known", zap.Int("line", ack.line), zap.String("gpu", ack.gpu))
		}
	}
	return acknowledged
}
