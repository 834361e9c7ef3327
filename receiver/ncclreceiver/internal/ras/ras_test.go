// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

// real returns the JSON form and the text form of a recording of NCCL 2.30.7.
func real(t testing.TB, name string) (jsonForm, textForm string) {
	all, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	text, jsonForm, _ := strings.Cut(string(all), "\n---  'CLIENT PROTOCOL 3")
	_, jsonForm, _ = strings.Cut(jsonForm, "OK\nOK\n")
	return jsonForm, text[strings.LastIndex(text, "\nOK\n")+4:]
}

func ask(t *testing.T, jsonForm, textForm string) *Report {
	endpoint, _ := fakeras.Serve(t, fakeras.Answers(jsonForm, textForm))
	r, err := Ask(t.Context(), endpoint)
	require.NoError(t, err)
	return r
}

var known = []string{"0xddd3726b78da14", "0xe99215468d7f05", "0xfd68d50b0a7290"}

func TestRealHang(t *testing.T) {
	jsonForm, textForm := real(t, "ras-hang.txt")
	for name, r := range map[string]*Report{
		"JSON":          ask(t, jsonForm, textForm),
		"text":          ask(t, "", textForm),
		"carried":       ask(t, "", strings.ReplaceAll(textForm, "\n", "\r\n")),
		"two functions": ask(t, "", strings.Replace(textForm, "\n#1-0", "  Communicator ranks have different AllGather operation counts\n  7 ranks have launched up to operation 12\n  Rank 5 has launched up to operation 11 -- GPU 0 managed by process 14780 on node 127.0.0.1\n\n#1-0", 1)),
	} {
		assert.Equal(t, []Laggard{{"0xfd68d50b0a7290", 5, 14780, 8, "127.0.0.1", false}}, r.Laggards(known), name)
		assert.True(t, r.Has("0xFD68D50B0A7290"))
		assert.Empty(t, r.Laggards([]string{"0x12345678901234"}), "another job")
		assert.Equal(t, "0xfd68d50b0a729056", r.Laggards(known[1:2])[0].Communicator)
	}
	runJSON, runText := real(t, "ras-run.txt")
	for name, r := range map[string]*Report{
		"JSON":         ask(t, runJSON, runText),
		"text":         ask(t, "", runText),
		"finalising":   ask(t, strings.ReplaceAll(jsonForm, `"finalize_called": false`, `"finalize_called": true`), ""),
		"destroyed":    ask(t, strings.ReplaceAll(jsonForm, `"destroy_flag": false`, `"destroy_flag": true`), ""),
		"aborted":      ask(t, strings.ReplaceAll(jsonForm, `"abort_flag": false`, `"abort_flag": true`), ""),
		"left":         ask(t, strings.ReplaceAll(jsonForm, `"missing_ranks": [`, `"missing_ranks": [{"rank":8,"pid":2,"status":{"unresponsive":false}}`), ""),
		"all finalise": ask(t, "", strings.ReplaceAll(textForm, " RUNNING ", " FINALIZE ")),
		"one aborts":   ask(t, "", strings.ReplaceAll(textForm, "MISMATCH\n  Comm", "MISMATCH\n  Rank 1 has status ABORT -- GPU 0 managed by process 14780 on node 127.0.0.1\n  Comm")),
	} {
		assert.Empty(t, r.Laggards(known), name)
	}
}

func TestConversation(t *testing.T) {
	endpoint, sent := fakeras.Serve(t, fakeras.Answers(real(t, "ras-run.txt")))
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

// forms writes "pid:begun" of ranks as NCCL does, in both forms; -1 is dead.
func forms(job map[uint64]string) (jsonForm, textForm string) {
	var all []string
	var summary, errs, warnings strings.Builder
	for h, members := range job {
		var ranks [2][]string
		by, process := map[int][]int{}, map[int]string{}
		head := fmt.Sprintf("#%d-0 (%016x) ", len(all), h)
		for i, m := range strings.Fields(members) {
			var pid, begun, dead int
			_, _ = fmt.Sscanf(m, "%d:%d", &pid, &begun)
			process[i] = fmt.Sprintf(" -- GPU %d managed by process %d on node 10.0.0.1\n", pid%8, pid)
			if by[begun] = append(by[begun], i); begun < 0 {
				dead = 1
				fmt.Fprint(&errs, head, "INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank ", i, process[i], "\n")
			}
			ranks[dead] = append(ranks[dead], fmt.Sprintf(`{"rank":%d,"host":"10.0.0.1","pid":%d,"cuda_dev":%d,"status":{"unresponsive":%t},"collective_counts":{"AllGather":7,"AllReduce":%d}}`, i, pid, pid%8, begun < 0, max(begun, 0)))
		}
		delete(by, -1)
		fmt.Fprintf(&summary, "%5d  %8d  %8d  %8s  %8d  %8d  %8s  %6s\n", len(all), 1, 1, "1-8", len(process), 8, "RUNNING", "MISMATCH")
		all = append(all, fmt.Sprintf(`{"hash":"0x%x","size":%d,"ranks":[%s],"missing_ranks":[%s]}`, h, len(process), strings.Join(ranks[0], ","), strings.Join(ranks[1], ",")))
		fmt.Fprint(&warnings, head, "MISMATCH\n  Communicator ranks have different AllReduce operation counts\n")
		for _, n := range slices.SortedFunc(maps.Keys(by), func(a, b int) int { return len(by[b]) - len(by[a]) }) {
			operations := strings.Replace(fmt.Sprint("launched up to operation ", n), "launched up to operation 0", "not launched any operations", 1)
			if k := len(by[n]); k == 1 {
				fmt.Fprint(&warnings, "  Rank ", by[n][0], " has ", operations, process[by[n][0]])
			} else if fmt.Fprintf(&warnings, "  %d ranks have %s\n", k, operations); 2*k < len(process) {
				for _, i := range by[n] {
					fmt.Fprint(&warnings, "  Rank ", i, process[i])
				}
			}
		}
	}
	return `{"nccl_version":"2.30.7","communicators":[` + strings.Join(all, ",") + `]}`, summary.String() + "\nErrors\n======\n\n" + errs.String() + "Warnings\n========\n\n" + warnings.String()
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
		jsonForm, textForm := forms(tt.job)
		assert.ElementsMatch(t, tt.want, ask(t, jsonForm, "").Laggards(ids), "JSON, %s", name)
		assert.ElementsMatch(t, tt.want, ask(t, "", textForm).Laggards(ids), "text, %s", name)
	}
	jsonForm, _ := forms(map[uint64]string{0xabc: "1:9 " + strings.Repeat("2:-1 ", 2*maxNamed)})
	assert.Len(t, ask(t, jsonForm, "").Laggards(ids), maxNamed)
	jsonForm, _ = forms(map[uint64]string{0xabc: "1:9 2:8 3:9", 0xdef: "1:8 2:9 3:9"})
	assert.Empty(t, ask(t, jsonForm, "").Laggards(ids), "each waits for the other")
}

func TestHas(t *testing.T) {
	r := ask(t, `{"communicators":[{"hash":"0xfd68d50b0a729056"},{"hash":"0x0068D50b0a729057"},{"hash":"0x8d50b0a72905612"},{"hash":"0xabc"}]}`, "")
	for i, id := range []string{"0xfd68d50b0a7290", "0xFD68D50B0A729056", "0x68d50b0a729057", "0x0068d50b0a7290", "0x8d50b0a7290561", "0x08d50b0a729056", "0xabc", "ABC", "", "0x", "0xa", "0xdeadbeef", "0xfd68d50b0a7291"} {
		assert.Equal(t, i < 8, r.Has(id), id)
	}
}

func TestBadAnswers(t *testing.T) {
	jsonForm, textForm := real(t, "ras-hang.txt")
	for name, answers := range map[string]map[string]string{
		"half of the JSON": fakeras.Answers(jsonForm[:len(jsonForm)/2], ""),
		"half of the text": fakeras.Answers("", strings.SplitAfter(textForm, "Errors\n")[0]),
		"half a line":      fakeras.Answers("", strings.TrimRight(textForm, "\n")),
		"a long line":      fakeras.Answers("", strings.Repeat("x", maxLine+1)+textForm),
		"a long value":     fakeras.Answers(`{"communicators":[{"hash":"`+strings.Repeat("0", maxAnswer)+`"}]}`, ""),
		"many ranks":       fakeras.Answers(`{"communicators":[{"ranks":[`+strings.Repeat("{},", 2*maxPieces)+`{}]}]}`, ""),
		"many lines":       fakeras.Answers("", strings.Repeat("\n", 3*maxPieces)+textForm),
		"a web server":     {"MONITOR": "HTTP/1.1 400 Bad Request\r\n"},
		"a strange status": {"MONITOR": "OK\n", "VERBOSE STATUS": "<html>"},
	} {
		endpoint, _ := fakeras.Serve(t, answers)
		_, err := Ask(t.Context(), endpoint)
		assert.ErrorContains(t, err, "RAS at "+endpoint, name)
	}
}

func FuzzAnswer(f *testing.F) {
	jsonForm, textForm := real(f, "ras-hang.txt")
	f.Add("SERVER PROTOCOL 2\nOK\nOK\n" + jsonForm)
	f.Add("SERVER PROTOCOL 2\nOK\nERROR\n" + textForm)
	f.Fuzz(func(t *testing.T, answer string) {
		if r, err := parse(answer); err == nil {
			for _, l := range r.Laggards(known) {
				assert.True(t, len(l.Host) < 1<<10 && len(l.Communicator) <= 18 && l.PID >= 0)
			}
		}
	})
}
