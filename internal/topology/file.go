// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"io"
	"os"
	"time"
)

// File is a table in a file that may change. It keeps the last good one. It is not safe
// for concurrent use.
type File struct {
	path  string
	table Table
	at    stamp
	told  string // the last error
}

// stamp is how a file looks from outside. A read waits until two looks agree.
type stamp struct {
	changed time.Time
	size    int64
	read    bool
}

// Open reads the file once, or returns an error with its path.
func Open(path string) (*File, error) {
	f := &File{path: path}
	info, err := os.Stat(path)
	if err == nil {
		f.table, err = load(path)
	}
	if err != nil {
		return nil, fmt.Errorf("topology file %s: %w", path, err)
	}
	f.at = stamp{info.ModTime(), info.Size(), true}
	return f, nil
}

// Table returns the last good table, nil of no file.
func (f *File) Table() Table {
	if f == nil {
		return nil
	}
	return f.table
}

// Look reads the file again when it has changed and changes no more. It reports what is
// wrong with it once, until something else is wrong or it is well again.
func (f *File) Look() (reloaded bool, news error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return false, f.tell(err)
	}
	now := stamp{info.ModTime(), info.Size(), false}
	if now.changed.Equal(f.at.changed) && now.size == f.at.size {
		if f.at.read {
			return false, nil
		}
		f.at.read = true
		table, err := load(f.path)
		if err != nil {
			return false, f.tell(err)
		}
		f.table, f.told = table, ""
		return true, nil
	}
	f.at = now
	return false, nil
}

func (f *File) tell(err error) error {
	f.at.read = f.at.read && !os.IsNotExist(err)
	if err.Error() == f.told {
		return nil
	}
	f.told = err.Error()
	return fmt.Errorf("topology file %s: %w; the last good one stays", f.path, err)
}

func load(path string) (Table, error) {
	file, err := os.Open(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, err
	}
	return Parse(string(text))
}
