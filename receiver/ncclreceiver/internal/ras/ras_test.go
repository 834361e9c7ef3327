// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

func all(string) bool { return true }

func TestAsk(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0x00ABc", 5, 4))
	got, err := Ask(t.Context(), server.Address, func(id string) bool { return id == Normal("0xabc") })
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Len(t, got["abc"].Ranks, 2)
	assert.Equal(t, int64(101), got["abc"].Ranks[1].PID)
	assert.Equal(t, int64(4+15), got["abc"].Ranks[1].begun())
}

// An older NCCL is never asked: it may crash.
func TestAnOlderVersionIsNotAsked(t *testing.T) {
	for _, minor := range []int{24, 27, 28} {
		server := fakeras.Start(t, minor, fakeras.Status("0x1", 1))
		_, err := Ask(t.Context(), server.Address, all)
		require.ErrorIs(t, err, ErrTooOld)
		assert.Zero(t, server.Asked())
	}
}

func TestABadServer(t *testing.T) {
	endless := func(text string) func(string, net.Conn) bool {
		return func(_ string, to net.Conn) bool {
			for {
				if _, err := fmt.Fprint(to, text); err != nil {
					return false
				}
			}
		}
	}
	report := func(text string) func(string, net.Conn) bool {
		return func(line string, to net.Conn) bool {
			switch {
			case strings.HasPrefix(line, "CLIENT"):
				_, _ = fmt.Fprint(to, "SERVER PROTOCOL 2\n")
			case line == "VERBOSE STATUS":
				_, _ = fmt.Fprint(to, text)
				return false
			default:
				_, _ = fmt.Fprint(to, "OK\n")
			}
			return true
		}
	}
	for name, answer := range map[string]func(string, net.Conn) bool{
		"never answers":          func(string, net.Conn) bool { return true },
		"hangs up":               func(string, net.Conn) bool { return false },
		"a line without end":     endless("x"),
		"lines without end":      endless("SERVER PROTOCOL 2\nOK\n"),
		"garbage":                report("<html>"),
		"half a report":          report(fakeras.Status("0x1", 1, 2)[:200]),
		"another form":           report(`{"communicators": 3}`),
		"a communicator of text": report(`{"communicators": ["x"]}`),
		"an array":               report(`[]`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := Ask(ctx, fakeras.Serve(t, answer), all)
			assert.Error(t, err)
		})
	}
	_, err := Ask(t.Context(), "127.0.0.1:1", all)
	assert.Error(t, err, "nobody is there")
}

func communicator(counts ...int64) *Communicator {
	c := &Communicator{}
	for i, n := range counts {
		c.Ranks = append(c.Ranks, Rank{Rank: int64(i), Host: "h", PID: int64(i), Counts: map[string]int64{"AllReduce": n}})
	}
	return c
}

func TestLaggards(t *testing.T) {
	rank := func(c *Communicator, at int, pid int64) { c.Ranks[at].PID = pid }
	missing := communicator(5, 5)
	missing.Missing = []Rank{{Rank: 2, Host: "h", PID: 2}}
	dead := communicator(5, 5)
	dead.Missing = []Rank{{Rank: 2, Host: "h", PID: 2}}
	dead.Missing[0].Status.Dead = true
	// Rank 1 of the inner group stands; so rank 0 and 2 of it come late to their outer ones.
	outer0, outer1, outer2 := communicator(8, 9, 9), communicator(8, 9, 9), communicator(8, 9, 9)
	for i, c := range []*Communicator{outer0, outer1, outer2} {
		rank(c, 0, int64(i))
		rank(c, 1, int64(100+i))
		rank(c, 2, int64(200+i))
	}
	for name, tt := range map[string]struct {
		before, after Report
		want          []Laggard
	}{
		"one is behind":     {Report{"a": communicator(5, 5, 4, 5)}, Report{"a": communicator(5, 5, 4, 5)}, []Laggard{{"a", 2, "h", false}}},
		"equal":             {Report{"a": communicator(5, 5, 5)}, Report{"a": communicator(5, 5, 5)}, nil},
		"it moves":          {Report{"a": communicator(5, 5, 4)}, Report{"a": communicator(6, 5, 4)}, nil},
		"one is ahead":      {Report{"a": communicator(5, 4, 4)}, Report{"a": communicator(5, 4, 4)}, nil},
		"new":               {Report{}, Report{"a": communicator(5, 4, 5)}, nil},
		"missing from both": {Report{"a": missing}, Report{"a": missing}, []Laggard{{"a", 2, "h", true}}},
		"missing once":      {Report{"a": communicator(5, 5, 5)}, Report{"a": missing}, nil},
		"dead":              {Report{"a": communicator(5, 5, 5)}, Report{"a": dead}, []Laggard{{"a", 2, "h", true}}},
		"an inner group": {
			Report{"a": communicator(31, 30, 31), "b0": outer0, "b1": outer1, "b2": outer2},
			Report{"a": communicator(31, 30, 31), "b0": outer0, "b1": outer1, "b2": outer2},
			[]Laggard{{"a", 1, "h", false}},
		},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, Laggards(tt.before, tt.after)) })
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(fakeras.Status("0x1", 1, 2)))
	f.Add([]byte(`{"communicators":[{"hash":18446744073709551615}]}`))
	f.Add([]byte(`{"communicators":[{"ranks":[{"collective_counts":{"x":1e9}}]}]}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		got, err := Parse(strings.NewReader(string(text)), all)
		if err == nil {
			Laggards(got, got)
		}
	})
}
