// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

// real returns the JSON form of a recording of NCCL 2.30.7.
func real(t testing.TB, name string) string {
	all, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return string(all)
}

func ask(t *testing.T, status string) *Report {
	endpoint, _ := fakeras.Serve(t, fakeras.Answers(status))
	r, err := Ask(t.Context(), endpoint)
	require.NoError(t, err)
	return r
}

var known = []string{"0xddd3726b78da14", "0xe99215468d7f05", "0xfd68d50b0a7290"}

func TestRealHang(t *testing.T) {
	hang := real(t, "ras-hang.json")
	r := ask(t, hang)
	assert.Equal(t, []Laggard{{"0xfd68d50b0a7290", 5, 14780, 8, "127.0.0.1", false}}, r.Laggards(known))
	assert.True(t, r.Has("0xFD68D50B0A7290"))
	assert.Empty(t, r.Laggards([]string{"0x12345678901234"}), "another job")
	assert.Equal(t, "0xfd68d50b0a729056", r.Laggards(known[1:2])[0].Communicator)
	for name, status := range map[string]string{
		"a run":      real(t, "ras-run.json"),
		"finalising": strings.ReplaceAll(hang, `"finalize_called": false`, `"finalize_called": true`),
		"destroyed":  strings.ReplaceAll(hang, `"destroy_flag": false`, `"destroy_flag": true`),
		"aborted":    strings.ReplaceAll(hang, `"abort_flag": false`, `"abort_flag": true`),
		"left":       strings.ReplaceAll(hang, `"missing_ranks": [`, `"missing_ranks": [{"rank":8,"pid":2,"status":{"unresponsive":false}}`),
	} {
		assert.Empty(t, ask(t, status).Laggards(known), name)
	}
}

func TestConversation(t *testing.T) {
	endpoint, sent := fakeras.Serve(t, fakeras.Answers(real(t, "ras-run.json")))
	_, err := Ask(t.Context(), endpoint)
	require.NoError(t, err)
	for _, line := range []string{"MONITOR", "CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"} {
		assert.Equal(t, line, <-sent)
	}
	endpoint, sent = fakeras.Serve(t, nil)
	_, err = Ask(t.Context(), endpoint)
	require.ErrorContains(t, err, "NCCL 2.29.2 or later")
	assert.Equal(t, "MONITOR", <-sent)
	assert.Empty(t, sent, "an old NCCL may crash")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = Ask(ctx, listener.Addr().String())
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// status writes "pid:begun" of ranks as NCCL does; -1 is dead.
func status(job map[uint64]string) string {
	var all []string
	for h, members := range job {
		var ranks [2][]string
		for i, m := range strings.Fields(members) {
			var pid, begun, dead int
			_, _ = fmt.Sscanf(m, "%d:%d", &pid, &begun)
			if begun < 0 {
				dead = 1
			}
			ranks[dead] = append(ranks[dead], fmt.Sprintf(`{"rank":%d,"host":"10.0.0.1","pid":%d,"cuda_dev":%d,"status":{"unresponsive":%t},"collective_counts":{"AllGather":7,"AllReduce":%d}}`, i, pid, pid%8, begun < 0, max(begun, 0)))
		}
		all = append(all, fmt.Sprintf(`{"hash":"0x%x","size":%d,"ranks":[%s],"missing_ranks":[%s]}`, h, len(ranks[0])+len(ranks[1]), strings.Join(ranks[0], ","), strings.Join(ranks[1], ",")))
	}
	return `{"nccl_version":"2.30.7","communicators":[` + strings.Join(all, ",") + `]}`
}

// tensors is a job with a group for each of 8 nodes (1 to 8), and one for each of their GPUs
// (11 to 18). The mates of rank 3 wait in their node for it, so they are late elsewhere.
func tensors(inNode, overNodes int) map[uint64]string {
	job := map[uint64]string{}
	for i := range 64 {
		tp, dp := 656, 328
		if i < 8 {
			dp--
		}
		if i == 3 {
			tp, dp = inNode, overNodes
		}
		job[uint64(1+i/8)<<56] += fmt.Sprintf("%d:%d ", 1000+i, tp)
		job[uint64(11+i%8)<<56] += fmt.Sprintf("%d:%d ", 1000+i, dp)
	}
	return job
}

func TestLaggards(t *testing.T) {
	const id, shared = "0xAbc", "0x100000000000000"
	ids := []string{id, "0xb0000000000000", "0xe0000000000000"}
	laggard := func(rank, pid, size int64) Laggard { return Laggard{id, rank, pid, size, "10.0.0.1", false} }
	for name, tt := range map[string]struct {
		job  map[uint64]string
		want []Laggard
	}{
		"half is behind":     {map[uint64]string{0xabc: "1:9 2:9 3:8 4:8"}, nil},
		"all but one":        {map[uint64]string{0xabc: "1:9 2:8 3:8 4:8 5:8 6:8 7:7"}, nil},
		"never began":        {map[uint64]string{0xabc: "1:9 2:0 3:9"}, []Laggard{laggard(1, 2, 3)}},
		"three counts":       {map[uint64]string{0xabc: "1:9 2:8 3:9 4:7 5:9"}, []Laggard{laggard(1, 2, 5), laggard(3, 4, 5)}},
		"two of one process": {map[uint64]string{0xabc: "8:9 8:8 8:9 8:8 8:9"}, []Laggard{laggard(1, 8, 5), laggard(3, 8, 5)}},
		"one is dead":        {map[uint64]string{0xabc: "1:9 2:-1"}, []Laggard{{id, 1, 2, 2, "10.0.0.1", true}}},
		"another job too":    {map[uint64]string{0xabc: "1:9 2:9 3:9", 0xdef: "4:9 5:8 6:9"}, nil},
		"several a process":  {map[uint64]string{0xabc: "8:9 8:9 9:9 9:8 9:9 8:8", 0xdef: "8:9 8:8 8:9"}, []Laggard{{"0xdef", 1, 8, 3, "10.0.0.1", false}}},
		"an unknown process": {map[uint64]string{0xabc: "1:9 2:8 3:9", 0xd: "0:8 3:9 4:9", 0xe: "0:8 3:9 5:9"}, []Laggard{laggard(1, 2, 3)}},
		"inner hang":         {tensors(654, 327), []Laggard{{shared, 3, 1003, 8, "10.0.0.1", false}}},
		"inner death":        {tensors(-1, -1), []Laggard{{shared, 3, 1003, 8, "10.0.0.1", true}}},
	} {
		assert.ElementsMatch(t, tt.want, ask(t, status(tt.job)).Laggards(ids), name)
	}
	many := status(map[uint64]string{0xabc: "1:9 " + strings.Repeat("2:-1 ", 2*maxNamed)})
	assert.Len(t, ask(t, many).Laggards(ids), maxNamed)
	both := status(map[uint64]string{0xabc: "1:9 2:8 3:9", 0xdef: "1:8 2:9 3:9"})
	assert.Empty(t, ask(t, both).Laggards(ids), "each waits for the other")
}

func TestHas(t *testing.T) {
	r := ask(t, `{"communicators":[{"hash":"0xfd68d50b0a729056"},{"hash":"0x0068D50b0a729057"},{"hash":"0x8d50b0a72905612"},{"hash":"0xabc"}]}`)
	for i, id := range []string{"0xfd68d50b0a7290", "0xFD68D50B0A729056", "0x68d50b0a729057", "0x0068d50b0a7290", "0x8d50b0a7290561", "0x08d50b0a729056", "0xabc", "ABC", "", "0x", "0xa", "0xdeadbeef", "0xfd68d50b0a7291"} {
		assert.Equal(t, i < 8, r.Has(id), id)
	}
}

func TestBadAnswers(t *testing.T) {
	hang := real(t, "ras-hang.json")
	text := fakeras.Answers("Warnings\n")
	delete(text, "SET FORMAT json")
	for name, answers := range map[string]map[string]string{
		"half of the JSON": fakeras.Answers(hang[:len(hang)/2]),
		"no JSON":          text,
		"a long value":     fakeras.Answers(`{"communicators":[{"hash":"` + strings.Repeat("0", maxAnswer) + `"}]}`),
		"many ranks":       fakeras.Answers(`{"communicators":[{"ranks":[` + strings.Repeat("{},", 2*maxPieces) + `{}]}]}`),
		"a web server":     {"MONITOR": "HTTP/1.1 400 Bad Request\r\n"},
		"a strange status": {"MONITOR": "OK\n", "VERBOSE STATUS": "<html>"},
	} {
		endpoint, _ := fakeras.Serve(t, answers)
		_, err := Ask(t.Context(), endpoint)
		assert.ErrorContains(t, err, "RAS at "+endpoint, name)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("SERVER PROTOCOL 2\nOK\nOK\n" + real(f, "ras-hang.json"))
	f.Fuzz(func(t *testing.T, answer string) {
		if r, err := parse(answer); err == nil {
			for _, l := range r.Laggards(known) {
				assert.True(t, len(l.Host) < 1<<10 && len(l.Communicator) <= 18 && l.PID >= 0)
			}
		}
	})
}
