// SPDX-License-Identifier: Apache-2.0

package inspector

import "bytes"

// MaxLine is how long a line may be. One of a verbose file has a few hundred bytes per
// channel, and NCCL has 64 channels at most.
const MaxLine = 64 << 10

// Lines cuts what is read of a growing file into lines. It passes over the NULs that a
// truncation by somebody else leaves before the next line, and keeps half a line for the
// next part. The zero value is at the begin of a line.
type Lines struct {
	half []byte
	long bool // the line is longer than MaxLine
	// Long counts lines that were.
	Long int
}

// Skip leaves the rest of the line out that the next part begins with.
func (l *Lines) Skip() { l.long = true }

// Reset is for a file that begins anew.
func (l *Lines) Reset() { l.half, l.long = l.half[:0], false }

// Add calls each with every line that part ends. The line is valid until each returns.
func (l *Lines) Add(part []byte, each func(line []byte)) {
	for len(part) > 0 {
		end := bytes.IndexByte(part, '\n')
		if end < 0 {
			l.keep(part)
			return
		}
		line := part[:end]
		part = part[end+1:]
		if l.long {
			l.half, l.long = l.half[:0], false
			continue
		}
		if len(l.half) > 0 {
			if len(l.half)+len(line) > MaxLine {
				l.Long++
				l.half = l.half[:0]
				continue
			}
			l.half = append(l.half, line...)
			line = l.half
		}
		if line = bytes.Trim(line, "\x00 \r\t"); len(line) > 0 {
			each(line)
		}
		l.half = l.half[:0]
	}
}

func (l *Lines) keep(part []byte) {
	part = bytes.TrimLeft(part, "\x00")
	switch {
	case l.long:
	case len(l.half)+len(part) > MaxLine:
		l.Long++
		l.long = true
		l.half = l.half[:0]
	default:
		l.half = append(l.half, part...)
	}
}
