// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"cmp"
	"strings"
)

// Holder is a container or a job that holds a GPU.
type Holder struct {
	Job, Pod, Namespace, Container string
	// Shared says that the GPU has other holders too.
	Shared bool
}

// MaxHolders bounds those of a node that are kept.
const MaxHolders = 128

// Named reports whether it says who it is.
func (h Holder) Named() bool { return h.Job != "" || h.Pod != "" }

// Ousts reports whether h holds a GPU alone that was other's before, as far as containers
// and jobs exclude their own kind: a job may run in a pod.
func (h Holder) Ousts(other Holder) bool {
	return !h.Shared && h != other && (h.Job == "") == (other.Job == "")
}

// Compare orders holders by their names.
func (h Holder) Compare(other Holder) int {
	shared := 0
	if h.Shared != other.Shared {
		if shared = 1; other.Shared {
			shared = -1
		}
	}
	return cmp.Or(strings.Compare(h.Job, other.Job), strings.Compare(h.Namespace, other.Namespace), strings.Compare(h.Pod, other.Pod),
		strings.Compare(h.Container, other.Container), shared)
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
