// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"errors"
	"os"

	"go.uber.org/zap"
)

// former is what the name of the former file ends with.
const former = ".1"

// auditFile is the file of the audit and the former one. A line is in one of them, whole.
type auditFile struct {
	name  string
	limit int64
	log   *zap.Logger
	file  *os.File
	size  int64
	// stuck says that the last rotation failed, which was told, and cut that the last line
	// was not written to its end.
	stuck, cut bool
}

// openAuditFile goes on with the file that is there.
func openAuditFile(name string, limit int64, log *zap.Logger) (*auditFile, error) {
	f := &auditFile{name: name, limit: limit, log: log}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *auditFile) open() error {
	file, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size, f.cut = file, info.Size(), false
	if f.size > 0 {
		last := make([]byte, 1)
		_, err = file.ReadAt(last, f.size-1)
		f.cut = err != nil || last[0] != '\n'
	}
	return nil
}

// write adds a line. One that is longer than the limit has a file of its own. A line that a
// kill or a full disk has cut is ended first.
func (f *auditFile) write(line []byte) error {
	if f.size > 0 && f.size+int64(len(line)) > f.limit {
		f.rotate()
	}
	if f.cut {
		line = append([]byte("\n"), line...)
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	f.cut = err != nil && (n > 1 || f.cut && n == 0)
	return err
}

// rotate begins a new file. Where it cannot, lines go on into the old one: a decision is
// worth more than the bound.
func (f *auditFile) rotate() {
	old := f.file
	err := os.Rename(f.name, f.name+former)
	if err == nil {
		if err = f.open(); err != nil {
			f.file = old // the former one takes the lines meanwhile
			err = errors.Join(err, os.Rename(f.name+former, f.name))
		} else {
			err = old.Close()
		}
	}
	if err != nil && !f.stuck {
		f.log.Error("`audit::file` cannot be rotated, and grows beyond `audit::max_mib` until it can.", zap.String("file", f.name), zap.Error(err))
	}
	f.stuck = err != nil
}

func (f *auditFile) close() error { return f.file.Close() }
