// SPDX-License-Identifier: Apache-2.0

// Package boltfile checks a file of bbolt, as file_storage keeps one, before bbolt maps it:
// of a damaged one bbolt reads addresses that are not there, and that ends the process. Pure.
package boltfile // import "github.com/gpu-collector/gpu-collector/internal/boltfile"

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// The format is that of bbolt v1.5.0, in internal/common: page.go, meta.go, bucket.go. It
// is in the machine's order of bytes.
const (
	headerSize  = 16
	elementSize = 16
	bucketSize  = 16
	metaSize    = 64

	magic   = 0xED0CDAED
	version = 2

	flagBranch, flagLeaf, flagFreeList = 0x01, 0x02, 0x10
	flagBucket                         = 0x01 // of an element of a leaf

	noFreeList = math.MaxUint64

	minPageSize, maxPageSize = 1 << 10, 16 << 20 // that bbolt looks for

	maxKeySize = 32 << 10 // as bbolt's
	maxDepth   = 64       // of trees that bbolt writes it is below ten
)

// bucketName is the one bucket of a file of file_storage.
const bucketName = "default"

var order = binary.NativeEndian

// Damage says what is wrong with a file.
type Damage struct{ Cause string }

func (d *Damage) Error() string { return d.Cause }

func damaged(format string, args ...any) error { return &Damage{fmt.Sprintf(format, args...)} }

// Check reports the first damage of a file that bbolt would stumble over, as a *Damage. It
// reads what bbolt reads when it opens the file: all pages that are in use, but no value
// that has pages of its own. An empty file is a new one.
func Check(file io.ReaderAt, size int64) error {
	if size == 0 {
		return nil
	}
	c := checker{file: file, size: size}
	m, err := c.meta()
	if err != nil {
		return err
	}
	c.end = m.end
	if m.end > uint64(size)/c.pageSize {
		return damaged("it is cut off: %d bytes, must be at least %d pages of %d", size, m.end, c.pageSize)
	}
	c.used = make([]uint64, (m.end+63)/64)
	if err := c.tree(m.root, true, nil, nil, 0); err != nil {
		return err
	}
	if m.freeList != noFreeList {
		return c.freeList(m.freeList)
	}
	return nil
}

type checker struct {
	file     io.ReaderAt
	size     int64
	pageSize uint64
	end      uint64   // the first page that was never used
	used     []uint64 // a bit for each page
}

type meta struct{ pageSize, root, freeList, end, tx uint64 }

// read returns n bytes of the file.
func (c *checker) read(at, n uint64) ([]byte, error) {
	b := make([]byte, n)
	if read, err := c.file.ReadAt(b, int64(at)); read < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return nil, damaged("it ends at byte %d, must reach to %d", at+uint64(read), at+n)
		}
		return nil, damaged("byte %d cannot be read: %v", at, err)
	}
	return b, nil
}

// meta returns the newer one of the two beginnings that are whole: of a write that was
// interrupted the older one is.
func (c *checker) meta() (m meta, err error) {
	first, err := c.metaAt(0)
	if err != nil {
		// Of a file whose first page is not whole the second tells how large pages are.
		for at := uint64(minPageSize); at <= maxPageSize && at+headerSize+metaSize <= uint64(c.size); at *= 2 {
			if second, err := c.metaAt(at); err == nil && second.pageSize == at {
				return c.chosen(second, 1)
			}
		}
		return m, damaged("neither of its two beginnings is whole: %v", err)
	}
	second, err := c.metaAt(first.pageSize)
	if err == nil && second.pageSize == first.pageSize && second.tx > first.tx {
		return c.chosen(second, 1)
	}
	return c.chosen(first, 0)
}

// chosen checks the beginning that bbolt goes by. Writes take turns between the two places.
func (c *checker) chosen(m meta, place uint64) (meta, error) {
	c.pageSize = m.pageSize
	if m.tx%2 != place {
		return m, damaged("write %d begins on page %d, must be on %d", m.tx, place, m.tx%2)
	}
	return m, nil
}

func (c *checker) metaAt(at uint64) (m meta, err error) {
	b, err := c.read(at+headerSize, metaSize)
	if err != nil {
		return m, err
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:metaSize-8])
	switch {
	case order.Uint32(b) != magic:
		return m, damaged("byte %d begins no page of bbolt's", at)
	case order.Uint32(b[4:]) != version:
		return m, damaged("it is of version %d, must be %d", order.Uint32(b[4:]), version)
	case order.Uint64(b[metaSize-8:]) != sum.Sum64():
		return m, damaged("the checksum at byte %d does not fit", at)
	}
	m = meta{
		pageSize: uint64(order.Uint32(b[8:])), root: order.Uint64(b[16:]),
		freeList: order.Uint64(b[32:]), end: order.Uint64(b[40:]), tx: order.Uint64(b[48:]),
	}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pageSize&(m.pageSize-1) != 0 {
		return m, damaged("its pages are of %d bytes, must be a power of two of at least %d", m.pageSize, minPageSize)
	}
	return m, nil
}

// page is the first of those that continue it.
type page struct {
	first []byte
	bytes uint64 // of all of them
	flags uint16
	count int
}

// take marks a page as used, once.
func (c *checker) take(id uint64) (p page, err error) {
	if id < 2 || id >= c.end {
		return p, damaged("it refers to page %d, must be from 2 to %d", id, c.end-1)
	}
	b, err := c.read(id*c.pageSize, c.pageSize)
	if err != nil {
		return p, err
	}
	if order.Uint64(b) != id {
		return p, damaged("page %d says that it is page %d", id, order.Uint64(b))
	}
	p = page{first: b, flags: order.Uint16(b[8:]), count: int(order.Uint16(b[10:]))}
	more := uint64(order.Uint32(b[12:]))
	if more >= c.end-id {
		return p, damaged("page %d goes on for %d pages, must end before page %d", id, more, c.end)
	}
	p.bytes = (1 + more) * c.pageSize
	for i := id; i <= id+more; i++ {
		if err := c.mark(i); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (c *checker) mark(id uint64) error {
	if c.used[id/64]&(1<<(id%64)) != 0 {
		return damaged("page %d is used twice", id)
	}
	c.used[id/64] |= 1 << (id % 64)
	return nil
}

// element is one of a page.
type element struct {
	key    []byte
	page   uint64 // of a branch
	bucket bool
	at, n  uint64 // where its value is, in the page
}

// content is the first bytes of a page, and of the pages that continue it.
type content struct {
	name  string
	bytes uint64
	first []byte
	more  func(at, n uint64) ([]byte, error)
}

func (in *content) read(at, n uint64) ([]byte, error) {
	if at+n <= uint64(len(in.first)) {
		return in.first[at : at+n], nil
	}
	return in.more(at, n)
}

// tree checks a page and those below it, whose keys are firstKey and more, before maxKey, nil
// for any. Of the file's own tree the values are buckets.
func (c *checker) tree(id uint64, own bool, firstKey, maxKey []byte, depth int) error {
	if depth > maxDepth {
		return damaged("page %d is %d levels deep, must be at most %d", id, depth, maxDepth)
	}
	p, err := c.take(id)
	if err != nil {
		return err
	}
	more := func(at, n uint64) ([]byte, error) { return c.read(id*c.pageSize+at, n) }
	in := content{fmt.Sprintf("page %d", id), p.bytes, p.first, more}
	switch {
	case p.flags != flagBranch && p.flags != flagLeaf:
		return damaged("page %d is of kind %#x, must be a branch or a leaf", id, p.flags)
	case p.count == 0 && (p.flags == flagBranch || depth > 0):
		return damaged("page %d is empty, must have an element", id)
	case p.flags == flagLeaf:
		return c.leaf(&in, p.count, own, firstKey, maxKey)
	}
	all, err := in.elements(p.count, true, firstKey, maxKey)
	if err != nil {
		return err
	}
	for i, e := range all {
		below := maxKey
		if i+1 < len(all) {
			below = all[i+1].key
		}
		if err := c.tree(e.page, own, e.key, below, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) leaf(in *content, count int, own bool, firstKey, maxKey []byte) error {
	all, err := in.elements(count, false, firstKey, maxKey)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.bucket != own || own && string(e.key) != bucketName {
			return damaged("%s has the key %q, must be of a value in the bucket %q", in.name, e.key, bucketName)
		}
		if !own {
			continue
		}
		if err := c.bucket(in, e); err != nil {
			return err
		}
	}
	return nil
}

// bucket checks what an element says of a bucket: its page, or all of its values.
func (c *checker) bucket(in *content, e element) error {
	if e.n < bucketSize || e.n > c.pageSize {
		return damaged("%s has a bucket of %d bytes, must be from %d to %d", in.name, e.n, bucketSize, c.pageSize)
	}
	b, err := in.read(e.at, e.n)
	if err != nil {
		return err
	}
	if root := order.Uint64(b); root != 0 {
		return c.tree(root, false, nil, nil, 0)
	}
	b = b[bucketSize:]
	if len(b) < headerSize || order.Uint16(b[8:]) != flagLeaf {
		return damaged("%s has a bucket that is neither a page nor values", in.name)
	}
	inner := content{name: in.name, bytes: uint64(len(b)), first: b}
	return c.leaf(&inner, int(order.Uint16(b[10:])), false, nil, nil)
}

// elements returns those of a page. They are one after the other, in the order of their
// keys; bbolt finds none in another order.
func (in *content) elements(count int, branch bool, firstKey, maxKey []byte) ([]element, error) {
	at := headerSize + uint64(count)*elementSize
	if at > in.bytes {
		return nil, damaged("%s has %d elements, must end within %d bytes", in.name, count, in.bytes)
	}
	b, err := in.read(0, at)
	if err != nil {
		return nil, err
	}
	all := make([]element, count)
	for i := range all {
		e, begin := &all[i], headerSize+i*elementSize
		raw := b[begin:]
		var position, key uint64
		if branch {
			position, key, e.page = uint64(order.Uint32(raw)), uint64(order.Uint32(raw[4:])), order.Uint64(raw[8:])
		} else {
			flags := order.Uint32(raw)
			if flags&^flagBucket != 0 {
				return nil, damaged("%s has an element of kind %#x, must be 0 or %d", in.name, flags, flagBucket)
			}
			e.bucket = flags == flagBucket
			position, key, e.n = uint64(order.Uint32(raw[4:])), uint64(order.Uint32(raw[8:])), uint64(order.Uint32(raw[12:]))
		}
		e.at = at + key
		switch {
		case uint64(begin)+position != at:
			return nil, damaged("%s has an element at byte %d, must be at %d", in.name, uint64(begin)+position, at)
		case key == 0 || key > maxKeySize || e.at+e.n > in.bytes:
			return nil, damaged("%s has a key of %d bytes and a value of %d, must be from 1 to %d, and end within %d bytes", in.name, key, e.n, maxKeySize, in.bytes)
		}
		if e.key, err = in.read(at, key); err != nil {
			return nil, err
		}
		if i > 0 && bytes.Compare(e.key, all[i-1].key) <= 0 || maxKey != nil && bytes.Compare(e.key, maxKey) >= 0 {
			return nil, damaged("%s has keys that are not in order", in.name)
		}
		// Of another one bbolt would keep the page twice when it writes.
		if i == 0 && firstKey != nil && !bytes.Equal(e.key, firstKey) {
			return nil, damaged("%s begins with another key than its branch says", in.name)
		}
		at = e.at + e.n
	}
	return all, nil
}

// freeList checks the list of pages that may be written, which file_storage keeps in memory
// alone. bbolt would overwrite a page of the list that is in use.
func (c *checker) freeList(id uint64) error {
	p, err := c.take(id)
	if err != nil {
		return err
	}
	if p.flags != flagFreeList {
		return damaged("page %d is of kind %#x, must be a list of free pages", id, p.flags)
	}
	at, n := uint64(headerSize), uint64(p.count)
	if p.count == math.MaxUint16 {
		b, err := c.read(id*c.pageSize+at, 8)
		if err != nil {
			return err
		}
		at, n = at+8, order.Uint64(b)
	}
	if n > (p.bytes-at)/8 {
		return damaged("page %d has %d free pages, must end within %d bytes", id, n, p.bytes)
	}
	b, err := c.read(id*c.pageSize+at, n*8)
	if err != nil {
		return err
	}
	for ; len(b) > 0; b = b[8:] {
		free := order.Uint64(b)
		if free < 2 || free >= c.end {
			return damaged("page %d has the free page %d, must be from 2 to %d", id, free, c.end-1)
		}
		if err := c.mark(free); err != nil {
			return err
		}
	}
	return nil
}
