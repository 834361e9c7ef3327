// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Where a node or its tier was missing, the next hop may have another value than this table,
// or an end. Each of these lost something before.

func TestAnOvertakenPointLeavesTheDoubt(t *testing.T) {
	p := paused()
	overtaken := integer(1, 9)
	overtaken.Time = unix(p.at - 35*second)
	p.send(overtaken, integer(2, 1), integer(3, 1))
	p.at += 10 * second
	assert.Equal(t, []uint64{1}, p.send(integer(1, 1), integer(2, 1), integer(3, 1)).keys())
}

func TestAnEndIsSentWhereTheTierWasMissing(t *testing.T) {
	p := relaying()
	p.send(integer(1, 1), integer(2, 2))
	p.at += 330 * second
	assert.Equal(t, []uint64{2}, p.send(integer(2, 3)).keys())
	p.at += 10 * second
	assert.Equal(t, []uint64{1, 2}, p.send(end(1), integer(2, 4)).keys())
}

func TestAnEndIsSentAgainAfterAPause(t *testing.T) {
	p := paused()
	p.at -= 20 * second
	p.send(end(1), integer(2, 1), integer(3, 1))
	p.at += time.Minute
	assert.Contains(t, p.send(end(1), integer(2, 1), integer(3, 1)).keys(), uint64(1))
}

// A report of a tier has not all of the node.
func TestARequestOutlivesAPause(t *testing.T) {
	p := paused()
	p.Resync()
	p.relayed = true
	assert.Equal(t, []uint64{1}, p.send(integer(1, 1)).keys())
	p.at += 10 * second
	assert.Equal(t, []uint64{1, 2, 3}, p.send(integer(1, 1)).keys())
	p.at += 10 * second
	assert.Empty(t, p.send(integer(1, 1)).keys())
}

func TestAPauseOfATierIsAPause(t *testing.T) {
	p := push{Table: newTable(), relayed: true}
	for range 3 {
		p.at += 10 * second
		p.send(integer(1, 1))
	}
	p.at += 30 * second
	assert.Equal(t, []uint64{1}, p.send(integer(1, 1)).keys())
}

// A tier does not send again what is clean there.
func TestAValueThatWaitsOutlivesAPause(t *testing.T) {
	p := push{Table: newTable(collecting), relayed: true}
	for range 3 {
		p.at += 10 * second
		p.send(integer(1, 1), integer(2, 1))
		p.flush()
	}
	p.at += 10 * second
	p.send(integer(1, 5), integer(2, 1))
	p.held().Refused()
	p.at += 30 * second
	p.send(integer(2, 2))
	assert.Equal(t, []uint64{1, 2}, p.flush().keys())
}
