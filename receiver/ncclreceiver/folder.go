// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// maxEntries is how many names of files and folders are looked at in a scrape.
const maxEntries = 20_000

// fileName is that of the files that plug-ins write: <host>-pid<pid>.log.
var fileName = regexp.MustCompile(`^([A-Za-z0-9._-]{1,253})-pid([1-9][0-9]{0,8})\.log$`)

// found is a file in a folder.
type found struct {
	in         *os.Root
	name, path string      // in it, and in all
	info       fs.FileInfo // as it lies there
}

// fileID stays when a file is renamed, and differs for another file of its name.
type fileID struct{ device, inode uint64 }

func idOf(info fs.FileInfo) (id fileID, uid uint64) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fileID{uint64(stat.Dev), stat.Ino}, uint64(stat.Uid) //nolint:unconvert // not a uint64 everywhere
	}
	return fileID{}, 0
}

// listing looks for the files of plug-ins. It follows no link that a job may have made.
type listing struct {
	files []found
	roots []*os.Root
	left  int // of maxEntries
	fail  func(path string, err error)
}

// look lists the folders that a pattern names.
func (l *listing) look(pattern string) {
	parts := strings.Split(strings.Trim(filepath.Clean(pattern), "/"), "/")
	n := 0
	for n < len(parts) && !strings.ContainsAny(parts[n], `*?[\`) {
		n++
	}
	base := "/" + path.Join(parts[:n]...)
	root, err := os.OpenRoot(base) // the operator's own links count
	if err != nil {
		l.fail(base, err)
		return
	}
	l.roots = append(l.roots, root)
	l.walk(root, ".", parts[n:])
}

func (l *listing) walk(root *os.Root, at string, parts []string) {
	dir, err := root.Open(at)
	if err != nil {
		l.fail(path.Join(root.Name(), at), err)
		return
	}
	defer func() { _ = dir.Close() }()
	for err == nil && l.left > 0 {
		var entries []os.DirEntry
		entries, err = dir.ReadDir(min(l.left, 256))
		for _, e := range entries {
			name := path.Join(at, e.Name())
			if l.left--; len(parts) > 0 {
				if matched, _ := path.Match(parts[0], e.Name()); matched && e.IsDir() { // Validate has seen to the pattern
					l.walk(root, name, parts[1:])
				}
			} else if fileName.MatchString(e.Name()) {
				f := found{in: root, name: name, path: path.Join(root.Name(), name)}
				if f.info, _ = root.Lstat(name); f.info == nil { // it has gone
					continue
				}
				if f.info.Mode().IsRegular() {
					l.files = append(l.files, f)
				} else {
					l.fail(f.path, errNoFile)
				}
			}
		}
	}
	if err == nil {
		err = errTooMany
	}
	if !errors.Is(err, io.EOF) {
		l.fail(path.Join(root.Name(), at), err)
	}
}

func (l *listing) close() {
	for _, root := range l.roots {
		_ = root.Close()
	}
}

var (
	errTooMany = errors.New("the folders have too many files: `max_files`, or 20000 names, are looked at")
	errNoFile  = errors.New("it is no regular file, or leads elsewhere")
)

// open opens the very file that was listed.
func (f *found) open() (*os.File, fs.FileInfo, error) {
	// A pipe of that name would wait for a writer.
	file, err := f.in.OpenFile(f.name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	// A new file may have the number of one that went.
	if err == nil && (!info.Mode().IsRegular() || !os.SameFile(info, f.info)) {
		err = errNoFile
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}
