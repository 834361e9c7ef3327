// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"cmp"
	"slices"
	"strings"
	"unsafe"
)

// Holder is a container or a job that holds a GPU.
type Holder struct {
	Job, Pod, Namespace, Container string
	// Shared says that the GPU has other holders too.
	Shared bool
}

// maxHolders bounds those of a node, and maxHolderName their names. Eight GPUs that are
// shared by MPS have up to 384.
const maxHolders, maxHolderName = 512, 253

// Named reports whether it says who it is, in a length that a name may have.
func (h Holder) Named() bool {
	return (h.Job != "" || h.Pod != "") && max(len(h.Job), len(h.Pod), len(h.Namespace), len(h.Container)) <= maxHolderName
}

// Compare orders holders by their names.
func (h Holder) Compare(other Holder) int {
	return cmp.Or(strings.Compare(h.Job, other.Job), strings.Compare(h.Namespace, other.Namespace), strings.Compare(h.Pod, other.Pod),
		strings.Compare(h.Container, other.Container))
}

// Holding is a container or job and the UUIDs of its GPUs: most hold all of a node.
type Holding struct {
	Holder
	GPUs []string
}

// Holdings are those of a node, in order. A change makes new ones: readers may hold them.
type Holdings []Holding

// Set says whether a container or job holds the GPU, and returns what is new. One that holds
// it alone ends others of its kind: the end of one that was told before an agent's restart
// never comes. A job may run in a container.
func (all Holdings) Set(uuid string, of Holder, on bool) (next Holdings, news bool) {
	if !of.Named() {
		return all, false
	}
	ends := func(h Holder) bool {
		return h == of && !on || h != of && on && !of.Shared && (h.Job == "") == (of.Job == "")
	}
	held := false
	for i := range all {
		if h := &all[i]; slices.Contains(h.GPUs, uuid) {
			held, news = held || h.Holder == of, news || ends(h.Holder)
		}
	}
	if news {
		all = all.without(func(h Holder, gpu string) bool { return gpu == uuid && ends(h) })
	}
	if held || !on {
		return all, news
	}
	next = slices.Clone(all)
	if i := slices.IndexFunc(next, func(h Holding) bool { return h.Holder == of }); i >= 0 {
		next[i].GPUs = append(slices.Clone(next[i].GPUs), uuid)
		return next, true
	}
	if len(next) >= maxHolders {
		return all, news
	}
	at, _ := slices.BinarySearchFunc(next, of, func(h Holding, of Holder) int { return h.Compare(of) })
	return slices.Insert(next, at, Holding{of, []string{uuid}}), true
}

// Without ends those of GPUs that are gone.
func (all Holdings) Without(gone func(uuid string) bool) Holdings {
	return all.without(func(_ Holder, uuid string) bool { return gone(uuid) })
}

func (all Holdings) without(gone func(h Holder, uuid string) bool) (left Holdings) {
	for _, h := range all {
		h.GPUs = slices.DeleteFunc(slices.Clone(h.GPUs), func(uuid string) bool { return gone(h.Holder, uuid) })
		if len(h.GPUs) > 0 {
			left = append(left, h)
		}
	}
	return left
}

// Of returns who holds a GPU, or any of the node's where uuid is empty.
func (all Holdings) Of(uuid string) (list []Holder) {
	for _, h := range all {
		if uuid == "" || slices.Contains(h.GPUs, uuid) {
			list = append(list, h.Holder)
		}
	}
	return list
}

// Bytes is about what they take.
func (all Holdings) Bytes() (n int) {
	for i := range all {
		h := &all[i]
		n += 2*(int(unsafe.Sizeof(*h))+len(h.GPUs)*int(unsafe.Sizeof(""))) + len(h.Job) + len(h.Pod) + len(h.Namespace) + len(h.Container) + 48
	}
	return n
}

// holderKeys are the names that a holder's text has, in their order.
var holderKeys = [...]string{"job", "namespace", "pod", "container"}

func (h *Holder) names() [len(holderKeys)]*string {
	return [...]*string{&h.Job, &h.Namespace, &h.Pod, &h.Container}
}

// String is the holder as one line, such as `job=1234`, or `namespace=ml pod=train-0 container=main`.
func (h Holder) String() string {
	var words []string
	for i, name := range h.names() {
		if *name != "" {
			words = append(words, holderKeys[i]+"="+strings.Join(strings.Fields(*name), "_"))
		}
	}
	return strings.Join(words, " ")
}

// ParseHolder reads what String writes.
func ParseHolder(text string) (h Holder) {
	for word := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(word, "=")
		for i, name := range h.names() {
			if key == holderKeys[i] {
				*name = strings.Clone(value) // the text may be much longer
			}
		}
	}
	return h
}
