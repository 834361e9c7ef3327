// SPDX-License-Identifier: Apache-2.0

// Package statefile keeps what a component knows over a restart, in one small file with
// its form and a checksum. A file of no use is set aside, one that cannot be read is left
// alone, and neither stops anybody.
package statefile // import "github.com/gpu-collector/gpu-collector/internal/platform/statefile"

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/url"
	"os"
	"path/filepath"
)

const (
	// maxHead is more than the first line has.
	maxHead = 128
	// maxSize is more than the state of 200,000 nodes. A longer file is not read: its first
	// line may promise more than there is memory.
	maxSize = 1 << 30
	// setAside is added to the name of a file that is not used, for a person to look at. The
	// next one replaces it, so that they never fill a disk.
	setAside = ".set_aside"
)

// errUnusable is a file that was read and is damaged, or of another form.
var errUnusable = errors.New("the file is of no use")

// file is a path and what is in it.
type file struct {
	path string
	// form names content and version, without spaces. A file of another form is not read.
	form string
}

// Path is that of the file of the component with this id.
func Path(directory, id string) string {
	return filepath.Join(directory, url.PathEscape(id)+".state")
}

func newFile(directory, id, form string) file {
	return file{path: Path(directory, id), form: form}
}

// read returns what was written last, nil where there is no file.
func (f file) read() ([]byte, error) {
	info, err := os.Stat(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		// Not opened: a named pipe has no end.
		return nil, fmt.Errorf("%w: it is %v, not a regular file", errUnusable, info.Mode())
	}
	in, err := os.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // G307: it was only read
	return f.content(in, info.Size())
}

// content reads what write wrote. It reads no more than the first line promises: a disk may
// leave a file far longer than the memory.
func (f file) content(in io.Reader, length int64) ([]byte, error) {
	reader := bufio.NewReaderSize(in, maxHead)
	head, err := reader.ReadSlice('\n')
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	var form string
	var sum uint32
	var size int64
	if _, no := fmt.Sscanf(string(head), "gpu-collector %s %x %d", &form, &sum, &size); err != nil || no != nil {
		return nil, fmt.Errorf("%w: its first line is not one of ours", errUnusable)
	}
	if form != f.form {
		return nil, fmt.Errorf("%w: it is of the form %q, this is %q", errUnusable, form, f.form)
	}
	if has := length - int64(len(head)); has != size {
		return nil, fmt.Errorf("%w: it has %d bytes after its first line, which says %d", errUnusable, has, size)
	}
	if size > maxSize {
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", errUnusable, size, maxSize)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(reader, data); err != nil {
		return nil, err
	}
	if got := checksum(data); got != sum {
		return nil, fmt.Errorf("%w: its checksum is %08x, of its content it would be %08x", errUnusable, sum, got)
	}
	return data, nil
}

// write replaces the file: a reader, and a machine that loses its power, have the old one
// or the new one whole.
func (f file) write(data []byte) error {
	directory := filepath.Dir(f.path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	if len(data) > maxSize {
		return fmt.Errorf("the state has %d bytes, more than the %d that are read", len(data), maxSize)
	}
	beside := f.path + ".new"
	// Of a process that was killed.
	if err := os.Remove(beside); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	head := fmt.Appendf(nil, "gpu-collector %s %08x %d\n", f.form, checksum(data), len(data))
	if err := writeThrough(beside, head, data); err != nil {
		return err
	}
	if err := os.Rename(beside, f.path); err != nil {
		return err
	}
	return syncDirectory(directory)
}

// setAside moves a file away that is of no use, and returns where it is.
func (f file) setAside() (string, error) {
	to := f.path + setAside
	return to, os.Rename(f.path, to)
}

func writeThrough(path string, parts ...[]byte) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // G304: the directory is the configuration's
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for _, part := range parts {
		if _, err = out.Write(part); err != nil {
			return err
		}
	}
	return out.Sync()
}

// syncDirectory makes the rename last.
func syncDirectory(path string) error {
	directory, err := os.Open(path) //nolint:gosec // G304: the same
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}

func checksum(data []byte) uint32 {
	return crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
}
