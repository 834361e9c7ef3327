// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

const readBufferBytes = 64 << 10

var byteOrderMark = []byte("\xef\xbb\xbf")

// lineReader reads physical lines of bounded length. A line longer than max is
// read to its end and thrown away, so memory stays bounded on any input.
type lineReader struct {
	r     *bufio.Reader
	max   int
	long  []byte
	line  int64
	bytes int64
}

func newLineReader(r io.Reader, maxBytes int) lineReader {
	return lineReader{r: bufio.NewReaderSize(r, readBufferBytes), max: maxBytes}
}

// next returns a line without its end. The bytes are valid, and may be written
// to, until the next call.
func (l *lineReader) next() (line []byte, tooLong bool, err error) {
	l.long = l.long[:0]
	line, more, err := l.chunk()
	if err != nil {
		return nil, false, err
	}
	l.line++
	if more {
		l.long = append(l.long, line...)
		for more {
			var part []byte
			part, more, err = l.chunk()
			if err != nil {
				break
			}
			if tooLong = tooLong || len(l.long)+len(part) > l.max+2; !tooLong {
				l.long = append(l.long, part...)
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, err
		}
		line = l.long
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if l.line == 1 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	if tooLong || len(line) > l.max {
		return nil, true, nil
	}
	return line, false, nil
}

// chunk returns what the buffer holds up to the end of the line. A last line
// without an end is a line; io.EOF comes with no bytes.
func (l *lineReader) chunk() (b []byte, more bool, err error) {
	b, err = l.r.ReadSlice('\n')
	l.bytes += int64(len(b))
	switch {
	case err == nil:
		return b, false, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return b, true, nil
	case errors.Is(err, io.EOF) && len(b) > 0:
		return b, false, nil
	default:
		return nil, false, err
	}
}

// splitFields cuts a line at its commas by the rules of RFC 4180, but for one:
// a quoted field ends on its own line. Telemetry has no line breaks in fields,
// and a lost quote then costs one line and not the rest of the file.
// Quoted fields are unescaped in place.
func splitFields(line []byte, fields [][]byte) ([][]byte, bool) {
	for {
		if len(line) > 0 && line[0] == '"' {
			field, rest, ok := unquote(line[1:])
			if !ok {
				return fields, false
			}
			fields = append(fields, field)
			if len(rest) == 0 {
				return fields, true
			}
			line = rest[1:]
			continue
		}
		field, rest, found := bytes.Cut(line, []byte(","))
		if bytes.IndexByte(field, '"') >= 0 {
			return fields, false
		}
		fields = append(fields, field)
		if !found {
			return fields, true
		}
		line = rest
	}
}

// unquote reads what follows an opening quote; rest is empty or begins with a comma.
func unquote(b []byte) (field, rest []byte, ok bool) {
	w := 0
	for i := 0; i < len(b); i++ {
		if b[i] != '"' {
			b[w] = b[i]
			w++
			continue
		}
		if i+1 < len(b) && b[i+1] == '"' {
			b[w] = '"'
			w++
			i++
			continue
		}
		rest = b[i+1:]
		return b[:w], rest, len(rest) == 0 || rest[0] == ','
	}
	return nil, nil, false
}
