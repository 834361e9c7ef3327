// SPDX-License-Identifier: Apache-2.0

package statecopy

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAStandbyThatMissesMessages has in the end what the active process stored.
func TestAStandbyThatMissesMessages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Book
		stored, copied := map[Key][]byte{}, map[Key][]byte{}
		at := uint64(0)
		send := func(arrives bool) {
			lacks, now := b.Since(at)
			m, err := Read((&Message{Sender: "a", Relay: []string{":4317"}, Values: lacks}).Append(nil))
			require.NoError(t, err)
			if !arrives {
				return
			}
			at = now
			for _, v := range m.Values {
				if v.Bytes == nil {
					delete(copied, v.Key)
				} else {
					copied[v.Key] = v.Bytes
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				var all []Value
				for range rapid.IntRange(1, 3).Draw(t, "values") {
					k := Key{"processor", "straggler", "state", rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")}
					v := Value{Key: k, Bytes: rapid.SampledFrom([][]byte{nil, {}, []byte("x"), []byte("long")}).Draw(t, "bytes")}
					all = append(all, v)
					if delete(stored, k); v.Bytes != nil {
						stored[k] = v.Bytes
					}
				}
				b.Put(all...)
			case 2:
				send(rapid.Bool().Draw(t, "arrives"))
			case 3:
				copied, at = map[Key][]byte{}, 0 // another standby in its place
			}
		}
		send(true)
		require.Equal(t, stored, copied)
		lacks, _ := b.Since(at)
		require.Empty(t, lacks)
	})
}

func TestAMessageThatIsNone(t *testing.T) {
	whole := (&Message{Sender: "a", Values: []Value{{Key{"processor", "straggler", "state", "k"}, []byte("v")}}}).Append(nil)
	_, err := Read(whole)
	require.NoError(t, err)
	for i := range whole {
		bad := append([]byte(nil), whole...)
		bad[i] ^= 1
		_, err := Read(bad)
		require.Error(t, err)
		_, err = Read(whole[:i])
		assert.Error(t, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add((&Message{Sender: "a", Relay: []string{"b"}, Values: []Value{{Bytes: []byte("x")}}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Read(b); err == nil {
			again, err := Read(m.Append(nil))
			require.NoError(t, err)
			require.Equal(t, m, again)
		}
	})
}
