// SPDX-License-Identifier: Apache-2.0

// Package rankattr reads and writes the attributes that name a rank or a GPU of a
// node, on points and on records.
package rankattr // import "github.com/gpu-collector/gpu-collector/internal/node/nodescore/rankattr"

import (
	"cmp"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// Put writes what is known of a subject.
func Put(attrs pcommon.Map, of nodesignal.Subject) {
	if of.GPU != "" {
		attrs.PutStr(gpusemconv.AttrHWID, of.GPU)
	}
	if n, known := of.Rank.Get(); known {
		attrs.PutInt(gpusemconv.AttrJobRank, n)
	}
	if n, known := of.LocalRank.Get(); known {
		attrs.PutInt(gpusemconv.AttrJobLocalRank, n)
	}
}

// Subject reads the part of a node that attributes name. Its text belongs to them.
func Subject(attrs pcommon.Map) nodesignal.Subject {
	return nodesignal.Subject{
		GPU:       GPU(attrs),
		Rank:      ordinal(attrs, gpusemconv.AttrJobRank),
		LocalRank: ordinal(attrs, gpusemconv.AttrJobLocalRank),
	}
}

// Within reads the part of a node that a point names, and the rest from its resource. A rank
// without any name is identified by the instance of its program, else by its process.
func Within(resource, point pcommon.Map) nodesignal.Subject {
	of := Subject(point)
	rest := Subject(resource)
	of.GPU, of.Rank, of.LocalRank = cmp.Or(of.GPU, rest.GPU), cmp.Or(of.Rank, rest.Rank), cmp.Or(of.LocalRank, rest.LocalRank)
	if of == (nodesignal.Subject{}) {
		of.Rank = unnamed(resource)
	}
	return of
}

func unnamed(resource pcommon.Map) nodesignal.Ordinal {
	for _, key := range [...]string{gpusemconv.AttrServiceInstanceID, gpusemconv.AttrProcessPID} {
		if instance := text(resource, key); instance != "" {
			return nodesignal.Unnamed(instance)
		}
	}
	return 0
}

// GPU reads the hw.id.
func GPU(attrs pcommon.Map) string { return text(attrs, gpusemconv.AttrHWID) }

func text(attrs pcommon.Map, key string) string {
	v, ok := attrs.Get(key)
	if !ok {
		return ""
	}
	return metricreading.Text(v)
}

// ordinal reads a number. Attributes set by environment variable are text.
func ordinal(attrs pcommon.Map, key string) nodesignal.Ordinal {
	v, ok := attrs.Get(key)
	switch {
	case !ok:
		return 0
	case v.Type() == pcommon.ValueTypeInt:
		return nodesignal.OrdinalOf(v.Int())
	default:
		return nodesignal.ParseOrdinal(metricreading.Text(v))
	}
}
