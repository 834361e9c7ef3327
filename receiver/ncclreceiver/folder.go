// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
)

// readSize is how much is read at a time.
const readSize = 64 << 10

// cause is why a file is not read.
type cause string

const (
	unreadable  cause = "unreadable"
	notAFile    cause = "not_a_file"
	noProcess   cause = "no_process"
	foreignUser cause = "foreign_user"
	tooMany     cause = "too_many"
	tooLong     cause = "too_long"
	notReleased cause = "not_released"
	noOperation cause = "no_operation"
)

var errCause = map[cause]string{
	notAFile:    "it is no regular file, or leads out of its folder",
	noProcess:   "no process with the Inspector has the pid or the GPU of its name, or several have; its operations are of nobody",
	foreignUser: "its owner is not the user of the process in its name",
	tooMany:     "`max_files` are read already",
	noOperation: "it is of another program, of another version, or broken",
}

// file is one that a process writes.
type file struct {
	path string
	of   process
	told *inspector.Process
	seen bool // in this pass
	// nameless is a rank that its process alone tells from others.
	nameless bool

	// Of JSON, which grows.
	identity fileIdentity
	offset   int64
	lines    inspector.Lines
	released int64 // bytes from the begin on whose room was given back
	// Of the Prometheus form, which is written anew: when it was, as it was taken last.
	dumps bool
	taken time.Time
}

type fileIdentity struct {
	device, inode uint64
}

// The names of the files, as patterns.
const (
	jsonFiles = "*-pid*.log"
	promFiles = "nccl_inspector_metrics_*.prom"
)

// outcomes are what the log says of a cause, where that is not that the file is not read.
var outcomes = map[cause]string{
	notReleased: "the room of what was read of a file of NCCL's Inspector is not given back",
	noOperation: "a file of NCCL's Inspector has lines that tell of no operation",
}

// writer is what a file's name tells of its process.
type writer struct {
	host string
	pid  int
	// gpu is the UUID without GPU- or MIG-, of a file of the Prometheus form.
	gpu string
}

// writerOf reads <host>-pid<pid>.log, and nccl_inspector_metrics_<UUID>.prom, where a job
// may come before the UUID.
func writerOf(name string) (w writer, ok bool) {
	if rest, found := strings.CutSuffix(name, ".prom"); found {
		w.gpu = strings.ToLower(rest[strings.LastIndexByte(rest, '_')+1:])
		return w, uuid.MatchString(w.gpu)
	}
	rest, found := strings.CutSuffix(name, ".log")
	at := strings.LastIndex(rest, "-pid")
	if !found || at < 0 {
		return writer{}, false
	}
	pid, err := strconv.Atoi(rest[at+len("-pid"):])
	return writer{host: rest[:at], pid: pid}, err == nil && pid > 0
}

// uuid has the digits of CUDA's; HIP's may have fewer dashes.
var uuid = regexp.MustCompile(`^[0-9a-f][0-9a-f-]{14,46}[0-9a-f]$`)

// open opens a file that is nothing else, in its folder, whatever lies there.
func open(path string, flag int) (*os.File, fileIdentity, uint64, error) {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, fileIdentity{}, 0, err
	}
	defer func() { _ = root.Close() }()
	// A pipe would wait for a writer.
	f, err := root.OpenFile(filepath.Base(path), flag|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fileIdentity{}, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fileIdentity{}, 0, errors.Join(err, f.Close())
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return nil, fileIdentity{}, 0, errors.Join(errNoFile, f.Close())
	}
	return f, fileIdentity{stat.Dev, stat.Ino}, uint64(stat.Uid), nil
}

var (
	errNoFile  = errors.New("not a regular file")
	errTooLong = errors.New("longer than the Inspector writes for Prometheus")
)

// causeOf classes an error of open.
func causeOf(err error) cause {
	switch {
	case errors.Is(err, errNoFile), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENXIO), strings.Contains(err.Error(), "escapes"):
		return notAFile
	case errors.Is(err, fs.ErrNotExist):
		return ""
	}
	return unreadable
}

// settled is how long nobody writes to a file of the Prometheus form until it is believed:
// a dump is cut, and written kind by kind, within milliseconds.
const settled = time.Second

// readDump reads a file of the Prometheus form whole, if it was written since it was read
// last, and is written no more.
func (f *file) readDump(from *os.File, now time.Time, budget int64) (kinds []inspector.Kind, bad int, at time.Time, taken int64, err error) {
	before, err := from.Stat()
	if err != nil {
		return nil, 0, at, 0, err
	}
	at = before.ModTime()
	switch size := before.Size(); {
	case at.Equal(f.taken), now.Sub(at) < settled, budget <= 0:
		return nil, 0, at, 0, nil
	case size > inspector.MaxDump:
		f.taken = at
		return nil, 0, at, 0, fmt.Errorf("%w: %d bytes of %d", errTooLong, size, inspector.MaxDump)
	}
	text, err := io.ReadAll(io.LimitReader(from, inspector.MaxDump))
	if err != nil {
		return nil, 0, at, int64(len(text)), err
	}
	after, err := from.Stat()
	if err != nil || after.ModTime() != at || after.Size() != int64(len(text)) {
		return nil, 0, at, int64(len(text)), err
	}
	f.taken = at
	kinds, bad = inspector.ParseDump(text)
	return kinds, bad, at, int64(len(text)), nil
}

// read takes what the file has grown by, at most budget bytes, and returns how many it
// was. A file that was replaced, or cut, begins anew.
func (f *file) read(from io.ReaderAt, size, budget int64, buffer []byte, each func(line []byte)) (taken int64, err error) {
	if size < f.offset {
		f.offset, f.released = 0, 0
		f.lines.Reset()
	}
	for f.offset < size && taken < budget {
		n, err := from.ReadAt(buffer[:min(int64(len(buffer)), size-f.offset, budget-taken)], f.offset)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return taken, err
		}
		f.lines.Add(buffer[:n], each)
		f.offset += int64(n)
		taken += int64(n)
	}
	return taken, nil
}

// releaseSize is how much room is given back at a time, whole blocks of any file system.
const releaseSize = 4 << 20

// release gives the room of what was read back to the file system, and leaves a hole. The
// writer keeps its place (fallocate(2), FALLOC_FL_PUNCH_HOLE).
func (f *file) release() error {
	read := f.offset &^ (releaseSize - 1)
	if read <= f.released {
		return nil
	}
	to, identity, _, err := open(f.path, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	if identity != f.identity {
		return nil // another has taken its place, and begins anew
	}
	if err := unix.Fallocate(int(to.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, f.released, read-f.released); err != nil {
		return &fs.PathError{Op: "fallocate", Path: f.path, Err: err}
	}
	f.released = read
	return nil
}
