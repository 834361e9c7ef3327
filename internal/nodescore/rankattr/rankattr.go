// SPDX-License-Identifier: Apache-2.0

// Package rankattr reads and writes the attributes that name a rank or a GPU of a
// node, on points and on records.
package rankattr // import "github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"

import (
	"cmp"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
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

// Subject reads whom attributes name. Its text belongs to them.
func Subject(attrs pcommon.Map) nodesignal.Subject {
	return nodesignal.Subject{
		GPU:       GPU(attrs),
		Rank:      ordinal(attrs, gpusemconv.AttrJobRank),
		LocalRank: ordinal(attrs, gpusemconv.AttrJobLocalRank),
	}
}

// Within reads whom a point names. The resource may say the rest: a rank with a
// resource of its own says it there. A rank without any name is told from others by the
// instance of its program, else by its process.
func Within(resource, point pcommon.Map) nodesignal.Subject {
	of := Subject(point)
	if of.GPU == "" {
		of.GPU = GPU(resource)
	}
	if of.Rank == 0 {
		of.Rank = ordinal(resource, gpusemconv.AttrJobRank)
	}
	if of.LocalRank == 0 {
		of.LocalRank = ordinal(resource, gpusemconv.AttrJobLocalRank)
	}
	if of == (nodesignal.Subject{}) {
		of.Rank = unnamed(resource, point)
	}
	return of
}

// unnamed tells processes apart by their ids. In containers most have the id 1: they are
// told apart by container and pod, too.
func unnamed(resource, point pcommon.Map) nodesignal.Ordinal {
	if instance := text(resource, gpusemconv.AttrServiceInstanceID); instance != "" {
		return nodesignal.Unnamed(instance)
	}
	pid := cmp.Or(text(point, gpusemconv.AttrProcessPID), text(resource, gpusemconv.AttrProcessPID))
	for _, key := range [...]string{gpusemconv.AttrContainerID, gpusemconv.AttrPodUID, gpusemconv.AttrPodName} {
		if container := text(resource, key); container != "" && pid != "" {
			return nodesignal.Unnamed(container + " " + pid)
		}
	}
	if pid != "" {
		return nodesignal.Unnamed(pid)
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
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return v.Str()
	case pcommon.ValueTypeInt:
		return v.AsString()
	default:
		return ""
	}
}

// ordinal reads a number, which whoever sets attributes by environment variable
// can send as text only.
func ordinal(attrs pcommon.Map, key string) nodesignal.Ordinal {
	v, ok := attrs.Get(key)
	if !ok {
		return 0
	}
	switch v.Type() {
	case pcommon.ValueTypeInt:
		return nodesignal.OrdinalOf(v.Int())
	case pcommon.ValueTypeStr:
		return nodesignal.ParseOrdinal(v.Str())
	default:
		return 0
	}
}
