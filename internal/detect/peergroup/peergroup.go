// SPDX-License-Identifier: Apache-2.0

// Package peergroup names the nodes that a node is compared with. Agent and gateway
// name the same group for a node, each by the reports that it received.
package peergroup // import "github.com/gpu-collector/gpu-collector/internal/detect/peergroup"

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Default is the peer group of nodes that name none.
const Default = "default"

// maxKeyLength is what a header may carry of a group's name.
const maxKeyLength = pushheaders.MaxNameLength

// Memory is how a node's peer-group attributes came to be known: each of
// its reports may know a part of them, its job's the job and its GPUs' their
// model. Agent and gateway keep one each, so that they name the same group. The
// zero value has no report yet.
type Memory struct {
	claims  []claim
	reports uint32
}

// claim is when an attribute was last named, and the report that did.
type claim struct {
	at     time.Time
	report uint32
}

// Merge takes the attributes that a report names, empty where it names none. It
// returns each attribute's last value within ttl; the caller gives that result
// back as known at the next call. A report that contradicts one attribute voids
// the attributes that came with it: another job need not have a role. The result
// holds strings of both.
func (m *Memory) Merge(known, report []string, now time.Time, ttl time.Duration) (merged []string, changed bool) {
	n := max(len(known), len(report))
	for len(m.claims) < n {
		m.claims = append(m.claims, claim{})
	}
	m.reports++
	for i := range n {
		was, is := at(known, i), at(report, i)
		changed = changed || was != is && (is != "" || now.Sub(m.claims[i].at) > ttl)
	}
	if changed {
		merged = make([]string, n)
		for i := range merged {
			if merged[i] = at(report, i); merged[i] == "" && !m.void(i, known, report, now, ttl) {
				merged[i] = at(known, i)
			}
		}
	} else {
		merged = known
	}
	for i, is := range report {
		if is != "" {
			m.claims[i] = claim{now, m.reports}
		}
	}
	return merged, changed
}

// void reports whether the value of an attribute that the report does not name
// holds no more.
func (m *Memory) void(i int, known, report []string, now time.Time, ttl time.Duration) bool {
	if now.Sub(m.claims[i].at) > ttl {
		return true
	}
	for j, is := range report {
		if is != "" && is != at(known, j) && m.claims[j].report == m.claims[i].report {
			return true
		}
	}
	return false
}

func at(values []string, i int) string {
	if i < len(values) {
		return values[i]
	}
	return ""
}

// Key names the peer group of nodes with these attribute values. It joins them
// percent-encoded with '/', without the empty values at the end. So different values
// never collide and the key is printable ASCII. A hash replaces the end of a key that
// is too long for a name. Agent and gateway must agree on it: a node asks for it.
func Key(peers []string) string {
	for len(peers) > 0 && peers[len(peers)-1] == "" {
		peers = peers[:len(peers)-1]
	}
	if len(peers) == 0 {
		return Default
	}
	var b strings.Builder
	for i, p := range peers {
		if i > 0 {
			b.WriteByte('/')
		}
		for j := range len(p) {
			c := p[j]
			if c <= 0x20 || c >= 0x7f || c == '/' || c == '%' || c == '"' || c == '\\' {
				fmt.Fprintf(&b, "%%%02X", c)
			} else {
				b.WriteByte(c)
			}
		}
	}
	key := b.String()
	if key == Default {
		return "%64efault" // a job of that name is not the nodes without one
	}
	if len(key) <= maxKeyLength {
		return key
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return fmt.Sprintf("%s~%016x", key[:maxKeyLength-17], h.Sum64())
}
