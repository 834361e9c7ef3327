// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestEpochs is the table of cases: the epochs of answers in a row, in upper case where they show
// a loss.
func TestEpochs(t *testing.T) {
	for name, tt := range map[string]struct {
		oneNode bool
		answers string
	}{
		"a node moves to another process and back":     {true, "aaBbAa"},
		"spread over three processes":                  {false, "aBCabc"},
		"one of them restarts":                         {false, "aBCaDad"},
		"a return after eight others is taken for new": {false, "aBCDEFGHIbA"},
		"the last ones are kept before the others":     {false, "aBCDEFGHaIa"},
	} {
		t.Run(name, func(t *testing.T) {
			var e Epochs
			for i, answer := range strings.Split(tt.answers, "") {
				assert.Equal(t, answer == strings.ToUpper(answer), e.Observe(tt.oneNode, strings.ToLower(answer)), "answer %d", i)
			}
		})
	}
}

func TestSubscribers(t *testing.T) {
	var s Subscribers
	s.Publish()
	var a, b int
	cancelA := s.Subscribe(func() { a++ })
	cancelB := s.Subscribe(func() { b++ })
	s.Publish()
	cancelA()
	s.Publish()
	cancelB()
	cancelB()
	s.Publish()
	assert.Equal(t, []int{1, 2}, []int{a, b})
	assert.Empty(t, s.fns)
}

func TestValidEpoch(t *testing.T) {
	for epoch, want := range map[string]bool{
		"": false, "x": true, strings.Repeat("x", MaxEpochLength): true, strings.Repeat("x", MaxEpochLength+1): false, "é": false, "a\nb": false,
	} {
		assert.Equal(t, want, ValidEpoch(epoch), "%q", epoch)
	}
}
