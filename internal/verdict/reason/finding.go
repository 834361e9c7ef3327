// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Finding is why a node is slow, by its facts.
type Finding struct {
	Reason Reason
	Action gpuhealth.Action
	// Observation is true where the deciding fact is no worse than the peers', or the peers are
	// unknown: it is no proof.
	Observation bool
	// GPU is the hw.id of a GPU, MIG slice or network adapter, empty where the evidence is of
	// the whole node.
	GPU string
	// Evidence holds the deciding facts, then further ones. Peers of a fact is the median over
	// the peers, each with its worst GPU.
	Evidence []episode.Evidence
	// Shared of the Asked nodes have the reason; only of a group's finding.
	Shared, Asked int
}

// Because is the reason as a clause: the deciding fact, and the first one with a number. Without
// evidence it is the rule.
func Because(r Reason, evidence []episode.Evidence) string {
	if r == Unexplained {
		return "nothing that was measured explains it"
	}
	when, name := "", strings.ReplaceAll(string(r), "_", " ")
	if i := slices.IndexFunc(contrasts, func(c rule) bool { return c.reason == r }); i >= 0 {
		when = contrasts[i].when
	}
	var parts []string
	for _, e := range evidence {
		f := named(e.Fact)
		if f == healthScore {
			return cmp.Or(gpuhealth.Meaning(string(r)), when, name)
		}
		if f.what == "" || e.Value == nil || f.form == yes && len(parts) > 0 {
			continue
		}
		text := f.what
		if f.form != yes {
			text += ": " + f.format(*e.Value)
			if e.Peers != nil {
				text += ", peers " + f.format(*e.Peers)
			}
		}
		if parts = append(parts, text); f.form != yes {
			break
		}
	}
	return cmp.Or(strings.Join(parts, "; "), when, gpuhealth.Meaning(string(r)), name)
}

// format writes a value with its unit.
func (f *fact) format(v float64) string {
	unit := ""
	switch {
	case f.form == share:
		v, unit = 100*v, " %"
	case f.unit == "Cel":
		unit = " °C"
	case f.unit == "By/s":
		v, unit = v/1e9, " GB/s"
	case f.unit == "W":
		unit = " W"
	}
	return strconv.FormatFloat(math.Round(10*v)/10, 'f', -1, 64) + unit
}
