// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

const (
	memoPoints = 64 // of a metric
	memoAttrs  = 4  // of a point
)

// memo remembers the hashes of the attributes of one metric's points. The next
// metric mostly has the same points, one for each GPU, in the same order, and
// comparing two texts takes less time than hashing one.
type memo struct {
	attrs []memoAttr // memoAttrs for each point
	used  int
}

type memoAttr struct {
	key, text string
	num, hash uint64
	kind      pcommon.ValueType
}

// attributes is attributesHash for the point at position i of its metric.
func (m *memo) attributes(i int, attrs pcommon.Map) uint64 {
	if i >= memoPoints {
		return attributesHash(attrs)
	}
	if m.attrs == nil {
		m.attrs = make([]memoAttr, memoPoints*memoAttrs)
	}
	at, end := i*memoAttrs, (i+1)*memoAttrs
	m.used = max(m.used, end)
	var sum uint64
	for k, v := range attrs.All() {
		kind := v.Type()
		if at == end || (kind != pcommon.ValueTypeStr && kind != pcommon.ValueTypeInt) {
			sum += attributeHash(statetable.HashString(k), valueHash(v))
			continue
		}
		a := &m.attrs[at]
		at++
		var text string
		var num uint64
		if kind == pcommon.ValueTypeStr {
			text = v.Str()
		} else {
			num = uint64(v.Int())
		}
		if a.kind != kind || a.num != num || a.text != text || a.key != k {
			*a = memoAttr{key: k, text: text, num: num, kind: kind, hash: attributeHash(statetable.HashString(k), valueHash(v))}
		}
		sum += a.hash
	}
	return sum
}

// forget lets go of the report's texts.
func (m *memo) forget() {
	clear(m.attrs[:m.used])
	m.used = 0
}
