// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const duration, deadline, retry = 6 * time.Second, 4 * time.Second, time.Second

// process is an elector with a clock of its own, which may be wrong by anything and whose
// steps of work take any time.
type process struct {
	*Elector
	wrong   time.Duration
	name    string
	due     time.Time
	read    *Record // and not written yet
	version int
	next    Record
	nextAt  time.Time
}

// TestNeverTwo draws processes that are slow, stand still, die and lose their answers. At
// no moment do two of them hold the lease, and a lease that is free is taken in time.
func TestNeverTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stored Record
		version, lives := 0, 0
		now := begin
		born := func(i int) *process {
			lives++
			name := fmt.Sprint("p", i, "-", lives)
			return &process{
				Elector: New(Config{name, duration, deadline}), name: name, due: now,
				wrong: time.Duration(rapid.Int64Range(-1e12, 1e12).Draw(t, "wrong")),
			}
		}
		all := []*process{born(0), born(1), born(2)}
		taken := 0
		for range 300 {
			now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
			i := rapid.IntRange(0, len(all)-1).Draw(t, "who")
			p := all[i]
			own := now.Add(p.wrong)
			switch what := rapid.IntRange(0, 30).Draw(t, "what"); {
			case what == 0:
				all[i] = born(i) // killed, and started again
			case what == 1:
				p.due = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "hangs")) * time.Second)
			case now.Before(p.due):
			case p.read == nil:
				r := stored
				p.read, p.version = &r, version
				next, mine := p.Next(r, own)
				p.next, p.nextAt = next, own
				if !mine {
					p.read, p.due = nil, now.Add(retry)
				}
			default:
				p.read, p.due = nil, now.Add(retry)
				if p.version == version { // else somebody was faster
					if stored.Holder != p.name {
						taken++
					}
					stored = p.next
					version++
					if what != 2 { // else the answer is lost
						p.Wrote(p.next, p.nextAt)
					}
				}
			}
			holders := 0
			for _, p := range all {
				if p.Holds(now.Add(p.wrong)) {
					holders++
					require.Equal(t, p.name, stored.Holder)
				}
			}
			require.LessOrEqual(t, holders, 1)
		}
		require.Positive(t, taken)
	})
}

func TestALeaseThatIsLetGoIsTakenAtOnce(t *testing.T) {
	a, b := New(Config{"a", duration, deadline}), New(Config{"b", duration, deadline})
	first, mine := a.Next(Record{}, begin)
	require.True(t, mine)
	a.Wrote(first, begin)
	assert.True(t, a.Holds(begin.Add(deadline-1)))
	assert.False(t, a.Holds(begin.Add(deadline)))
	_, mine = b.Next(first, begin.Add(time.Second))
	assert.False(t, mine)
	_, mine = b.Next(first, begin.Add(time.Second+duration-1))
	assert.False(t, mine, "its time runs from when it was seen")
	taken, mine := b.Next(first, begin.Add(time.Second+duration))
	assert.True(t, mine)
	assert.Equal(t, 2, taken.Transitions)

	free := a.Release(begin.Add(2 * time.Second))
	assert.False(t, a.Holds(begin.Add(2*time.Second)))
	_, mine = b.Next(free, begin.Add(3*time.Second))
	assert.True(t, mine)
}
