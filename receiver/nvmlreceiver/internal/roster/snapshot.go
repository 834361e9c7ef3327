// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

const (
	// snapshotVersion is another when an older Restore would misread the snapshot.
	snapshotVersion = 1
	// maxSnapshot is far more than MaxGPUs need.
	maxSnapshot = 1 << 20
)

var errCorrupt = errors.New("the list of GPUs is corrupt")

type snapshot struct {
	Version int
	Node    string
	GPUs    []gpuSnapshot
	Ignored []string `json:",omitempty"`
}

type gpuSnapshot struct {
	gpuhealth.Identity
	Lost, Acknowledged bool             `json:",omitempty"`
	Reason             gpuhealth.Reason `json:",omitempty"` // empty: it answered
}

// Revision grows with each change that a restart should not forget.
func (r *Roster) Revision() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revision
}

// Snapshot is what Restore needs, and the Revision that it has.
func (r *Roster) Snapshot() (data []byte, revision uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := snapshot{Version: snapshotVersion, Node: r.node, Ignored: slices.Sorted(maps.Keys(r.ignored))}
	for _, uuid := range slices.Sorted(maps.Keys(r.gpus)) {
		g := r.gpus[uuid]
		reason := g.reason
		if reason == gpuhealth.ReasonOK {
			reason = ""
		}
		s.GPUs = append(s.GPUs, gpuSnapshot{Identity: g.id, Lost: g.lost, Acknowledged: g.acknowledged, Reason: reason})
	}
	data, err = json.Marshal(s)
	return data, r.revision, err
}

// Restore takes up what Snapshot returned in an earlier life, before anything
// else of the roster's. After an error the roster is as it was.
func (r *Roster) Restore(data []byte, _ time.Time) error {
	if len(data) > maxSnapshot {
		return fmt.Errorf("%w: %d bytes", errCorrupt, len(data))
	}
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%w: %w", errCorrupt, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.Version != snapshotVersion:
		return fmt.Errorf("the list of GPUs is of version %d, this is %d", s.Version, snapshotVersion)
	case s.Node != r.node && s.Node != "" && r.node != "":
		return fmt.Errorf("the list of GPUs is of node %.64q, this is %q", s.Node, r.node)
	case len(s.GPUs) > MaxGPUs || len(s.Ignored) > MaxGPUs:
		return fmt.Errorf("%w: %d GPUs", errCorrupt, max(len(s.GPUs), len(s.Ignored)))
	}
	gpus, ignored := make(map[string]*gpu, len(s.GPUs)), make(map[string]struct{}, len(s.Ignored))
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if !gpuhealth.ValidUUID(g.UUID) || gpus[g.UUID] != nil || g.Reason != "" && !g.Reason.Valid() {
			return fmt.Errorf("%w: GPU %d: a UUID is none or there twice, or a reason is none", errCorrupt, i)
		}
		g.MIG = gpuhealth.MIG{} // slices are not kept
		gpus[g.UUID] = &gpu{id: g.Identity, reason: cmp.Or(g.Reason, gpuhealth.ReasonOK), lost: g.Lost, acknowledged: g.Acknowledged}
	}
	for _, address := range s.Ignored {
		if address == "" || Address(address) != address {
			return fmt.Errorf("%w: %.64q is no PCI address", errCorrupt, address)
		}
		ignored[address] = struct{}{}
	}
	r.gpus, r.ignored = gpus, ignored
	return nil
}

// Reasons are what the GPUs that are waited for were reported as last.
func (r *Roster) Reasons() map[string]gpuhealth.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons := make(map[string]gpuhealth.Reason, len(r.gpus))
	for uuid, g := range r.gpus {
		if !g.acknowledged {
			reasons[uuid] = g.reason
		}
	}
	return reasons
}
