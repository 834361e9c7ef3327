// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// chunkBytes is the length of a chunk before it is compressed. Longer ones are smaller in the file,
// shorter ones are read faster for one node.
const chunkBytes = 64 << 10

// Neither has an error with these options. A frame has a checksum, and may ask for 64 MiB.
var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(readers), zstd.WithDecoderMaxMemory(64<<20))
)

// chunk has rows, one after the other: node, cluster, peer group, the number of subjects, and
// these. A subject is its UUID and a number for each column. A text has its length before it.
type chunk struct {
	first, last string
	rows        []byte
}

func (c *chunk) add(row *fleethistory.Row) {
	if len(c.rows) == 0 {
		c.first, c.last = row.Node, row.Node
	}
	c.first, c.last = min(c.first, row.Node), max(c.last, row.Node)
	c.text(row.Node)
	c.text(row.Cluster)
	c.text(row.Group)
	c.number(uint64(len(row.Subjects)))
	for i := range row.Subjects {
		s := &row.Subjects[i]
		c.text(s.GPU)
		for _, v := range s.Values {
			c.rows = binary.LittleEndian.AppendUint64(c.rows, math.Float64bits(v))
		}
	}
}

func (c *chunk) number(v uint64) { c.rows = binary.AppendUvarint(c.rows, v) }

func (c *chunk) text(s string) {
	c.number(uint64(len(s)))
	c.rows = append(c.rows, s...)
}

// reader reads a chunk. After damage there is nothing left.
type reader struct {
	left    []byte
	damaged bool
}

func (r *reader) number() uint64 {
	v, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.left, r.damaged = nil, true
		return 0
	}
	r.left = r.left[n:]
	return v
}

func (r *reader) text() []byte { return r.bytes(r.number()) }

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.left)) {
		r.left, r.damaged = nil, true
		return nil
	}
	b := r.left[:n]
	r.left = r.left[n:]
	return b
}

// errChunk is of a chunk that is damaged.
var errChunk = errors.New("a chunk is damaged")

// selection passes on the samples that a question selects, and skips the rest of a chunk.
type selection struct {
	q                     *fleethistory.Query
	clusters, hosts, gpus set
	columns               []byte             // of the round, as JSON
	tables                map[string]*tables // of these columns, by peer group
	rows                  []byte             // of the last chunk
}

// set selects what it has, all where it is empty.
type set map[string]bool

func setOf(list []string) set {
	out := set{}
	for _, v := range list {
		out[v] = true
	}
	return out
}

func (s set) has(v []byte) bool { return len(s) == 0 || s[string(v)] }

// tables are the columns of a row's subjects.
type tables struct{ node, gpu, group table }

// table has the columns of a subject that the question selects, and the length of all.
type table struct {
	columns []column
	bytes   uint64
}

type column struct {
	at                 int // in bytes
	metric, attributes string
}

func newSelection(q *fleethistory.Query) *selection {
	return &selection{q: q, clusters: setOf(q.Clusters), hosts: setOf(q.Hosts), gpus: setOf(q.GPUs)}
}

// each calls f for each selected sample of a chunk, until it returns false.
func (s *selection) each(at int64, columns, chunk []byte, f func(*fleethistory.Sample) bool) (more bool, err error) {
	if s.rows, err = decoder.DecodeAll(chunk, s.rows[:0]); err != nil {
		return false, errChunk
	}
	if !bytes.Equal(columns, s.columns) {
		s.columns, s.tables = bytes.Clone(columns), map[string]*tables{}
	}
	for r := (reader{left: s.rows}); len(r.left) > 0; {
		node, cluster := r.text(), r.text()
		t, err := s.tablesOf(r.text())
		if err != nil {
			return false, err
		}
		p := fleethistory.Sample{At: at, Node: string(node), Cluster: string(cluster)}
		of, selected := &t.node, s.hosts.has(node) && s.clusters.has(cluster)
		if p.Node == "" {
			of = &t.group
		}
		for n := r.number(); n > 0 && !r.damaged; n-- {
			gpu, values := r.text(), r.bytes(of.bytes)
			if selected && !r.damaged && s.gpus.has(gpu) {
				p.GPU = string(gpu)
				for i := range of.columns {
					c := &of.columns[i]
					p.Metric, p.Attributes, p.Value = c.metric, c.attributes, math.Float64frombits(binary.LittleEndian.Uint64(values[c.at:]))
					if !math.IsNaN(p.Value) && !f(&p) {
						return false, nil
					}
				}
			}
			of = &t.gpu
		}
		if r.damaged {
			return false, errChunk
		}
	}
	return true, nil
}

// tablesOf returns the columns of a row with that peer group.
func (s *selection) tablesOf(group []byte) (*tables, error) {
	if t := s.tables[string(group)]; t != nil {
		return t, nil
	}
	var layout fleethistory.Layout
	if json.Unmarshal(s.columns, &layout) != nil {
		return nil, errChunk
	}
	name := string(group)
	t := &tables{s.table(layout.Node, name), s.table(layout.GPU, name), s.table(layout.Group, name)}
	s.tables[name] = t
	return t, nil
}

func (s *selection) table(list []fleethistory.Column, group string) table {
	t := table{bytes: uint64(8 * len(list))}
	for i, c := range list {
		grouped := c.Grouped && group != ""
		if len(s.q.Metrics) > 0 && !slices.Contains(s.q.Metrics, c.Metric) || s.q.PeerGroup != "" && (!grouped || s.q.PeerGroup != group) {
			continue
		}
		attributes := map[string]string{}
		maps.Copy(attributes, c.Attributes)
		if grouped {
			attributes[gpusemconv.AttrPeerGroup] = group
		}
		t.columns = append(t.columns, column{8 * i, c.Metric, fleethistory.JoinAttributes(attributes)})
	}
	return t
}
