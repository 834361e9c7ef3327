// SPDX-License-Identifier: Apache-2.0

package gpuholders

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	var b Book
	gpu := func(id string, pids ...uint32) GPU { return GPU{UUID: id, PIDs: pids} }
	slice := func(id string, pids ...uint32) GPU { return GPU{UUID: id, Slice: true, PIDs: pids} }
	for name, tt := range map[string]struct {
		gpus []GPU
		want string
	}{
		"nothing":                              {nil, ""},
		"its own":                              {[]GPU{gpu("a", 7), gpu("b", 8)}, "b"},
		"another's":                            {[]GPU{gpu("a", 7)}, ""},
		"a context on the first, too":          {[]GPU{gpu("a", 7, 8, 9), gpu("b", 8), gpu("c", 9)}, "b"},
		"as many on two":                       {[]GPU{gpu("a", 7, 8), gpu("b", 7, 8)}, ""},
		"as many on two, and fewer on a third": {[]GPU{gpu("a", 7, 8), gpu("b", 7, 8), gpu("c", 8)}, "c"},
		"a slice":                              {[]GPU{gpu("a", 7, 8), slice("s", 8)}, "s"},
		"a slice before its GPU":               {[]GPU{slice("s", 8), gpu("a", 8)}, "s"},
		"two slices":                           {[]GPU{gpu("a", 8), slice("s", 8), slice("t", 8)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b.Tell(t, tt.gpus)
			got, known := b.Of(8)
			assert.Equal(t, tt.want, got.UUID)
			assert.Equal(t, tt.want != "", known)
			b.Tell(t, nil)
			_, known = b.Of(8)
			assert.False(t, known)
		})
	}
}

// Two receivers may read one GPU, and each takes back its own word alone.
func TestTellers(t *testing.T) {
	var b Book
	b.Tell(1, []GPU{{UUID: "a", PIDs: []uint32{8}}})
	b.Tell(2, []GPU{{UUID: "a", PIDs: []uint32{8}}, {UUID: "b", PIDs: []uint32{9}}})
	for pid, want := range map[int]string{8: "a", 9: "b"} {
		got, known := b.Of(pid)
		assert.True(t, known)
		assert.Equal(t, want, got.UUID)
	}
	b.Tell(2, nil)
	_, known := b.Of(9)
	assert.False(t, known)
	_, known = b.Of(8)
	assert.True(t, known)
}
