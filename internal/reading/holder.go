// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Holder is a container or a job that holds a GPU.
type Holder struct {
	Job       string `json:"job,omitempty" doc:"As its scheduler names it; absent for a container"`
	Pod       string `json:"pod,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Container string `json:"container,omitempty"`
	// Shared: the GPU has other holders too.
	Shared bool `json:"-"`
}

// maxHoldings bounds those of a node, and maxHolderName their names. Eight GPUs that are
// shared by MPS have up to 384.
const maxHoldings, maxHolderName = 512, 253

// Named reports whether it has a name, in a length that a name may have.
func (h Holder) Named() bool {
	return (h.Job != "" || h.Pod != "") && max(len(h.Job), len(h.Pod), len(h.Namespace), len(h.Container)) <= maxHolderName
}

// Compare orders holders by their names.
func (h Holder) Compare(other Holder) int {
	return cmp.Or(strings.Compare(h.Job, other.Job), strings.Compare(h.Namespace, other.Namespace), strings.Compare(h.Pod, other.Pod),
		strings.Compare(h.Container, other.Container))
}

// Holding is a holder and one of its GPUs. A node's have their holders in common.
type Holding struct {
	*Holder
	GPU string
}

// Holdings are those of a node, by the holders' names. A change makes new ones: readers may hold them.
type Holdings []Holding

// Set records whether a container or job holds the GPU, and returns the new holdings. A holder
// that is alone ends the others of its kind: an agent that was restarted does not report their
// end. A job may run in a container.
func (all Holdings) Set(uuid string, of Holder, on bool) (next Holdings, changed bool) {
	if !of.Named() {
		return all, false
	}
	var own *Holder
	held := false
	ends := func(h Holding) bool {
		same := *h.Holder == of
		return h.GPU == uuid && (same && !on || !same && on && !of.Shared && (h.Job == "") == (of.Job == ""))
	}
	for _, h := range all {
		if *h.Holder == of {
			own, held = h.Holder, held || h.GPU == uuid
		}
		changed = changed || ends(h)
	}
	add := on && !held && len(all) < maxHoldings
	if !changed && !add {
		return all, false
	}
	next = slices.DeleteFunc(slices.Clone(all), ends)
	if add {
		if own == nil {
			own = new(of)
			for _, name := range own.names() {
				*name = strings.Clone(*name) // the text may be much longer
			}
		}
		at, _ := slices.BinarySearchFunc(next, of, func(h Holding, of Holder) int { return h.Compare(of) })
		next = slices.Insert(next, at, Holding{own, uuid})
	}
	return next, true
}

// Of returns the holders of a GPU, or of any of the node's where uuid is empty, each once: a job may
// have some GPUs alone, and some with others.
func (all Holdings) Of(uuid string) (list []Holder) {
	for _, h := range all {
		if (uuid == "" || h.GPU == uuid) && (len(list) == 0 || h.Compare(list[len(list)-1]) != 0) {
			list = append(list, *h.Holder)
		}
	}
	return list
}

// Bytes is about what they take.
func (all Holdings) Bytes() (n int) {
	for i, h := range all {
		n += 2 * int(unsafe.Sizeof(h))
		if i == 0 || all[i-1].Holder != h.Holder {
			n += int(unsafe.Sizeof(*h.Holder)) + len(h.Job) + len(h.Pod) + len(h.Namespace) + len(h.Container) + 48
		}
	}
	return n
}

// holderKeys are the names that a holder's text has, in their order, and their attributes.
var holderKeys = [...][2]string{
	{"job", gpusemconv.AttrJobID}, {"namespace", gpusemconv.AttrNamespaceName}, {"pod", gpusemconv.AttrPodName}, {"container", gpusemconv.AttrContainerName},
}

func (h *Holder) names() [len(holderKeys)]*string {
	return [...]*string{&h.Job, &h.Namespace, &h.Pod, &h.Container}
}

// Name sets the name of a key or attribute, where it is a holder's.
func (h *Holder) Name(key, value string) {
	for i, name := range h.names() {
		if slices.Contains(holderKeys[i][:], key) {
			*name = value
		}
	}
}

// String is the holder as one line, such as `job=1234`, or `namespace=ml pod=train-0 container=main`.
func (h Holder) String() string {
	var parts []string
	for i, name := range h.names() {
		if *name != "" {
			parts = append(parts, holderKeys[i][0]+"="+strings.Join(strings.Fields(*name), "_"))
		}
	}
	return strings.Join(parts, " ")
}

// ParseHolder reads what String writes.
func ParseHolder(text string) (h Holder) {
	for part := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(part, "=")
		h.Name(key, strings.Clone(value)) // the text may be much longer
	}
	return h
}
