// SPDX-License-Identifier: Apache-2.0

// Package roster remembers the GPUs of one node. A lost GPU stays lost until it
// answers again or a person acknowledges it. It is pure: it knows neither NVML nor a
// clock nor a disk.
package roster // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// MaxGPUs bounds the GPUs that are remembered. NVML addresses far fewer; only
// boards that are swapped again and again could reach it.
const MaxGPUs = 256

// All stands for every GPU in Acknowledge.
const All = "all"

// Cause is why a GPU is no longer remembered as missing.
type Cause string

// The causes.
const (
	Acknowledged Cause = "acknowledged" // by a person
	Replaced     Cause = "replaced"     // an unknown board answers at its PCI address
	HandedOver   Cause = "handed_over"  // to a virtual machine
)

// Ended is a GPU that is no longer waited for.
type Ended struct {
	ID     gpuhealth.Identity
	Reason gpuhealth.Reason // that it had last
	Cause  Cause
	By     string // UUID of the board at its address
}

// Roster is what the node had. Its methods may be called by several goroutines.
type Roster struct {
	node string

	mu      sync.Mutex
	gpus    map[string]*gpu     // by UUID
	ignored map[string]struct{} // PCI addresses that were acknowledged, of GPUs without a name
	bus     []string            // PCI addresses that show a GPU
	most    int                 // of them, since the start
	waiting bool                // for GPUs that the driver has not reported
	round   uint64
	ended   []Ended
}

type gpu struct {
	kept
	slices   []gpuhealth.Identity // when it last answered
	reported bool                 // by the driver, since the wait began
	// Rounds in which it was first seen, last claimed by a slot and last
	// answered; 0 is before the start.
	first, claimed, answered uint64
}

// kept is what a restart takes up of a GPU as it is.
type kept struct {
	gpuhealth.Identity
	// Lost: the driver lost the GPU, which has not answered since.
	// Acknowledged: it is not waited for.
	Lost, Acknowledged bool             `json:",omitempty"`
	Reason             gpuhealth.Reason `json:",omitempty"`
}

// New is an empty roster of the named node. An empty name is any node.
func New(node string) *Roster {
	return &Roster{node: node, gpus: map[string]*gpu{}, ignored: map[string]struct{}{}}
}

// Begin starts a round, in which each GPU is claimed once.
func (r *Roster) Begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
}

// Await sets whether GPUs are waited for that the driver has not reported since the wait
// began. They are pending: neither found nor lost, unless they were lost before.
func (r *Roster) Await(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if yes && !r.waiting {
		for _, g := range r.gpus {
			g.reported = false
		}
	}
	r.waiting = yes
}

func (r *Roster) pending(g *gpu) bool {
	return r.waiting && !g.reported && !g.Acknowledged && g.Reason == gpuhealth.ReasonOK
}

// Pending are the GPUs that are remembered and pending, in the order of their UUIDs.
func (r *Roster) Pending() (ids []gpuhealth.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(r.gpus)) {
		if g := r.gpus[uuid]; r.pending(g) {
			ids = append(ids, g.Identity)
		}
	}
	return ids
}

// Claim notes that a slot is the GPU's in this round, and returns false
// when another slot already did.
func (r *Roster) Claim(id gpuhealth.Identity) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, ok := r.gpus[id.UUID]
	if !ok {
		if len(r.gpus) >= MaxGPUs {
			r.forgetOldest()
		}
		g = &gpu{first: r.round, kept: kept{Reason: gpuhealth.ReasonOK}}
		r.gpus[id.UUID] = g
	} else if g.claimed == r.round {
		return false
	}
	g.Identity, g.claimed = id, r.round
	return true
}

// ClaimAt claims the GPU that was last seen at the index and not elsewhere since. It is for a
// slot without a UUID, once the others have answered. It returns an empty UUID where
// there is none, or where a board has that GPU's address and the slot may be another GPU's.
func (r *Roster) ClaimAt(index int) (uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last *gpu
	for _, g := range r.gpus {
		if g.Index == index && (last == nil || g.claimed > last.claimed || g.claimed == last.claimed && g.UUID < last.UUID) {
			last = g
		}
	}
	if last == nil {
		return ""
	}
	if at := r.answering(); at[Address(last.PCIBusID)] != nil {
		for _, g := range r.gpus {
			if g.claimed != r.round && at[Address(g.PCIBusID)] == nil {
				return ""
			}
		}
	}
	last.claimed = r.round
	return last.UUID
}

// Answers notes that a GPU that was claimed answers, cut into the slices.
func (r *Roster) Answers(uuid string, parts []gpuhealth.Identity) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gpus[uuid]
	if g == nil {
		return
	}
	delete(r.ignored, Address(g.PCIBusID))
	g.slices, g.Reason, g.Lost, g.Acknowledged, g.answered, g.reported = parts, gpuhealth.ReasonOK, false, false, r.round, true
}

// NoAnswer is what a GPU that does not answer is reported as, with its slices; reported: the
// driver has reported it. A pending GPU has no samples.
func (r *Roster) NoAnswer(uuid string, reason gpuhealth.Reason, reported bool) []gpuhealth.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gpus[uuid]
	if g == nil {
		return nil
	}
	g.reported = g.reported || reported
	return r.noAnswer(g, reason)
}

func (r *Roster) noAnswer(g *gpu, reason gpuhealth.Reason) []gpuhealth.Sample {
	if g.Acknowledged || r.pending(g) {
		return nil
	}
	switch {
	case reason == gpuhealth.ReasonNotFound && g.Lost:
		reason = gpuhealth.ReasonLost // the driver has only stopped to list it
	case reason == gpuhealth.ReasonLost && !g.Lost:
		g.Lost = true
	}
	g.Reason = reason
	samples := []gpuhealth.Sample{{Identity: g.Identity, Reason: reason}}
	for _, id := range g.slices {
		samples = append(samples, gpuhealth.Sample{Identity: id, Reason: reason})
	}
	return samples
}

// End ends a round and reports the GPUs that no slot has claimed. A GPU gives its PCI
// address up to another that answers there. Where that board is new since the GPU
// answered last, it has replaced the GPU.
func (r *Roster) End() []gpuhealth.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.answering()
	var missing []gpuhealth.Sample
	for _, uuid := range slices.Sorted(maps.Keys(r.gpus)) {
		g := r.gpus[uuid]
		if g.claimed == r.round {
			continue
		}
		if by := at[Address(g.PCIBusID)]; by != nil {
			if by.first > g.answered {
				r.end(g, Replaced, by.UUID)
				delete(r.gpus, uuid)
				continue
			}
			g.PCIBusID = "" // the boards were swapped
		}
		missing = append(missing, r.noAnswer(g, gpuhealth.ReasonNotFound)...)
	}
	return missing
}

// answering are the GPUs that answer in this round, by their PCI addresses.
func (r *Roster) answering() map[string]*gpu {
	at := map[string]*gpu{}
	for _, g := range r.gpus {
		if address := Address(g.PCIBusID); g.answered == r.round && address != "" {
			at[address] = g
		}
	}
	return at
}

// Down is what all GPUs are reported as while the driver does not answer.
func (r *Roster) Down(reason gpuhealth.Reason) (samples []gpuhealth.Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.gpus {
		samples = append(samples, r.noAnswer(g, reason)...)
	}
	return samples
}

// SeeBus takes the PCI addresses that show a GPU, of GPUs that are handed through to
// a virtual machine, and of boards that another driver has.
func (r *Roster) SeeBus(shown, handedOver, others []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	given := func(address string) bool { return slices.Contains(handedOver, address) }
	r.most = max(r.most, len(shown))
	if slices.ContainsFunc(r.bus, func(address string) bool { return given(address) || slices.Contains(others, address) }) {
		r.most = len(shown)
	}
	r.bus = shown
	for uuid, g := range r.gpus {
		if (g.Reason != gpuhealth.ReasonOK || r.pending(g)) && given(Address(g.PCIBusID)) {
			r.end(g, HandedOver, "")
			delete(r.gpus, uuid)
		}
	}
}

// Nameless are the PCI addresses of GPUs that NVML has never named.
func (r *Roster) Nameless() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nameless()
}

func (r *Roster) nameless() (addresses []string) {
	named := map[string]bool{}
	for _, g := range r.gpus {
		named[Address(g.PCIBusID)] = true
	}
	for _, address := range r.bus {
		if _, ignored := r.ignored[address]; !ignored && !named[address] {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// Acknowledge ends the wait for a missing GPU, by its UUID, its PCI address, or
// All. It returns the UUIDs and addresses of those that it was true of.
func (r *Roster) Acknowledge(name string) (done []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uuid := range slices.Sorted(maps.Keys(r.gpus)) {
		g := r.gpus[uuid]
		missing := g.Reason == gpuhealth.ReasonLost || g.Reason == gpuhealth.ReasonNotFound
		if missing && !g.Acknowledged && (name == All || name == uuid || name == Address(g.PCIBusID)) {
			g.Acknowledged = true
			r.end(g, Acknowledged, "")
			done = append(done, uuid)
		}
	}
	for _, address := range r.nameless() {
		if (name == All || name == address) && len(r.ignored) < MaxGPUs {
			r.ignored[address] = struct{}{}
			done = append(done, address)
		}
	}
	return done
}

func (r *Roster) end(g *gpu, cause Cause, by string) {
	r.ended = append(r.ended, Ended{ID: g.Identity, Reason: g.Reason, Cause: cause, By: by})
}

// Ended returns each GPU once that is no longer waited for.
func (r *Roster) Ended() []Ended {
	r.mu.Lock()
	defer r.mu.Unlock()
	ended := r.ended
	r.ended = nil
	return ended
}

// Expected is how many GPUs there should be: those that are remembered, and no
// fewer than NVML lists and than are configured, or without that on the bus.
// Those that were acknowledged are not among them. 0 is not known.
func (r *Roster) Expected(configured, listed int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	remembered, acknowledged := 0, len(r.ignored)
	for _, g := range r.gpus {
		if g.Acknowledged {
			acknowledged++
		} else {
			remembered++
		}
	}
	if configured == 0 {
		configured = r.most
	}
	return max(remembered, max(configured, listed)-acknowledged)
}

// forgetOldest forgets the GPU that was seen longest ago.
func (r *Roster) forgetOldest() {
	oldest := slices.MinFunc(slices.Collect(maps.Values(r.gpus)), func(a, b *gpu) int {
		return cmp.Or(cmp.Compare(a.claimed, b.claimed), strings.Compare(a.UUID, b.UUID))
	})
	delete(r.gpus, oldest.UUID)
}

// Address is the PCI address that sysfs writes as 0000:1b:00.0 and NVML as
// 00000000:1B:00.0, in the form of sysfs. It is empty for anything else.
func Address(text string) string {
	var domain, bus, device, function uint32
	if n, err := fmt.Sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function); err != nil || n != 4 || len(text) > 16 ||
		bus > 0xff || device > 0x1f || function > 7 {
		return ""
	}
	address := fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, device, function)
	if !strings.HasSuffix(strings.ToLower(text), address) {
		return ""
	}
	return address
}

// snapshotVersion is another when an older Restore would misread the snapshot.
const snapshotVersion = 1

type snapshot struct {
	Version int
	Node    string
	GPUs    []kept   // without a reason: it answered
	Ignored []string `json:",omitempty"`
}

// Snapshot is what Restore needs.
func (r *Roster) Snapshot() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := snapshot{Version: snapshotVersion, Node: r.node, Ignored: slices.Sorted(maps.Keys(r.ignored))}
	for _, uuid := range slices.Sorted(maps.Keys(r.gpus)) {
		g := r.gpus[uuid].kept
		if g.Reason == gpuhealth.ReasonOK {
			g.Reason = ""
		}
		s.GPUs = append(s.GPUs, g)
	}
	return json.Marshal(s)
}

// Restore takes up what Snapshot returned in an earlier life, before anything
// else of the roster's. Its file has a checksum. After an error the roster is as it was.
func (r *Roster) Restore(data []byte, _ time.Time) error {
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("the list of GPUs is corrupt: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.Version != snapshotVersion:
		return fmt.Errorf("the list of GPUs is of version %d, this is %d", s.Version, snapshotVersion)
	case s.Node != r.node && s.Node != "" && r.node != "":
		return fmt.Errorf("the list of GPUs is of node %.64q, this is %q", s.Node, r.node)
	case len(s.GPUs) > MaxGPUs || len(s.Ignored) > MaxGPUs:
		return fmt.Errorf("the list of GPUs is corrupt: %d GPUs", max(len(s.GPUs), len(s.Ignored)))
	}
	gpus, ignored := make(map[string]*gpu, len(s.GPUs)), make(map[string]struct{}, len(s.Ignored))
	for _, g := range s.GPUs {
		g.Reason = cmp.Or(g.Reason, gpuhealth.ReasonOK)
		gpus[g.UUID] = &gpu{kept: g}
	}
	for _, address := range s.Ignored {
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
		if !g.Acknowledged {
			reasons[uuid] = g.Reason
		}
	}
	return reasons
}
