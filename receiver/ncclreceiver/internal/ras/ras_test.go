// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

// real returns the JSON form and the text form of a recording of NCCL 2.30.7.
func real(t testing.TB, name string) (jsonForm, textForm string) {
	t.Helper()
	all, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	text, jsonForm, found := strings.Cut(string(all), "\n---  'CLIENT PROTOCOL 3")
	require.True(t, found)
	_, jsonForm, _ = strings.Cut(jsonForm, "OK\nOK\n")
	return jsonForm, text[strings.LastIndex(text, "\nOK\n")+4:]
}

func ask(t *testing.T, jsonForm, textForm string) *Report {
	t.Helper()
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
		"2.26":          ask(t, "", strings.ReplaceAll(textForm, "AllReduce operation", "collective operation")),
		"two functions": ask(t, "", strings.Replace(textForm, "\n#1-0", "  Communicator ranks have different AllGather operation counts\n  7 ranks have launched up to operation 12\n  Rank 5 has launched up to operation 11 -- GPU 0 managed by process 14780 on node 127.0.0.1\n\n#1-0", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []Laggard{{"0xfd68d50b0a7290", 5, 14780, 8, "127.0.0.1", false}}, r.Laggards(known))
			assert.True(t, r.Has("0xFD68D50B0A7290"))
			assert.False(t, r.Has("0xfd68d50b0a7291"))
			assert.Empty(t, r.Laggards([]string{"0x12345678901234"}), "another job")
			// One that shares the process is named by RAS's own hash.
			assert.Equal(t, "0xfd68d50b0a729056", r.Laggards(known[1:2])[0].Communicator)
		})
	}
	jsonForm, textForm = real(t, "ras-run.txt")
	assert.Empty(t, ask(t, jsonForm, textForm).Laggards(known))
	assert.Empty(t, ask(t, "", textForm).Laggards(known))
}

func TestConversation(t *testing.T) {
	endpoint, sent := fakeras.Serve(t, fakeras.Answers(real(t, "ras-run.txt")))
	_, err := Ask(t.Context(), endpoint)
	require.NoError(t, err)
	for _, line := range []string{"MONITOR", "CLIENT PROTOCOL 2", "TIMEOUT 3", "SET FORMAT json", "VERBOSE STATUS"} {
		assert.Equal(t, line, <-sent)
	}
	for answer, want := range map[string]string{"": "NCCL 2.29.2 or later", "HTTP/1.1 400 Bad Request\r\n": `"HT"`} {
		endpoint, sent = fakeras.Serve(t, map[string]string{"MONITOR": answer})
		_, err = Ask(t.Context(), endpoint)
		require.ErrorContains(t, err, want)
		assert.Equal(t, "MONITOR", <-sent)
		assert.Empty(t, sent, "an old NCCL may crash")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		c, err := silent.Accept()
		assert.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.Read(make([]byte, 1))
		assert.NoError(t, err)
		cancel()
		_, _ = io.Copy(io.Discard, c)
	}()
	_, err = Ask(ctx, silent.Addr().String())
	require.ErrorIs(t, err, context.Canceled)
}

// member of a communicator; state is "", FINALIZE, NOCOMM (it has left) or DEAD.
type member struct {
	pid   int
	begun int64
	state string
}

// forms writes communicators as NCCL does, in both forms.
func forms(job map[uint64][]member) (jsonForm, textForm string) {
	var all []string
	var summary, errs, warnings string
	for h, members := range job {
		var ranks, missing []string
		var dead, left string
		by, process := map[int64][]int{}, make([]string, len(members))
		for i, m := range members {
			process[i] = fmt.Sprintf(" -- GPU %d managed by process %d on node 10.0.0.1\n", m.pid%8, m.pid)
			object := fmt.Sprintf(`{"rank":%d,"host":"10.0.0.1","pid":%d,"cuda_dev":%d,"status":{"init_state":0,"finalize_called":%t,"unresponsive":%t}`, i, m.pid, m.pid%8, m.state == "FINALIZE", m.state == "DEAD")
			if m.state == "DEAD" {
				dead += fmt.Sprint("  Rank ", i, process[i])
			} else if m.state != "" {
				left += fmt.Sprint("  Rank ", i, " has status ", m.state, process[i])
			}
			if m.state == "DEAD" || m.state == "NOCOMM" {
				missing = append(missing, object+"}")
				continue
			}
			by[m.begun] = append(by[m.begun], i)
			ranks = append(ranks, fmt.Sprintf(`%s,"collective_counts":{"AllGather":7,"AllReduce":%d}}`, object, m.begun))
		}
		all = append(all, fmt.Sprintf(`{"hash":"0x%x","size":%d,"ranks":[%s],"missing_ranks":[%s]}`, h, len(members), strings.Join(ranks, ","), strings.Join(missing, ",")))
		summary += fmt.Sprintf("%5d  %8d  %8d  %8s  %8d  %8d  %8s  %6s\n", len(all), 1, 1, "1-8", len(members), 8, "RUNNING", "MISMATCH")
		head := fmt.Sprintf("#%d-0 (%016x) ", len(all), h)
		if dead != "" {
			errs += head + "INCOMPLETE\n  Missing communicator data from 1 rank\n" + dead + "\n"
		}
		warnings += head + "MISMATCH\n" + left + "  Communicator ranks have different AllReduce operation counts\n"
		for _, n := range slices.SortedFunc(maps.Keys(by), func(a, b int64) int { return len(by[b]) - len(by[a]) }) {
			operations := strings.Replace(fmt.Sprint("launched up to operation ", n), "launched up to operation 0", "not launched any operations", 1)
			if k := len(by[n]); k == 1 {
				warnings += fmt.Sprint("  Rank ", by[n][0], " has ", operations, process[by[n][0]])
			} else if warnings += fmt.Sprintf("  %d ranks have %s\n", k, operations); 2*k < len(members) {
				for _, i := range by[n] {
					warnings += fmt.Sprint("  Rank ", i, process[i])
				}
			}
		}
	}
	return `{"nccl_version":"2.30.7","communicators":[` + strings.Join(all, ",") + `],"ras":{"timeouts_count":0}}`,
		summary + "\nErrors\n======\n\n" + errs + "Warnings\n========\n\n" + warnings
}

// group reads "pid:begun" or "pid:begun:state" of each rank.
func group(ranks string) (all []member) {
	for text := range strings.FieldsSeq(ranks) {
		m := member{}
		_, _ = fmt.Sscanf(strings.ReplaceAll(text, ":", " "), "%d %d %s", &m.pid, &m.begun, &m.state)
		all = append(all, m)
	}
	return all
}

// leaders is a group that the text form cannot tell from an outer one.
const leaders = 21 << 56

// tensors is a job of eight nodes of eight GPUs, a process for each: a group for each node
// (1 to 8), one for each GPU over all nodes (11 to 18), and the leaders of the nodes. One
// rank of the first node stands before an operation of its node.
func tensors(state string) map[uint64][]member {
	job := map[uint64][]member{}
	for i := range 64 {
		node, gpu := uint64(i/8), uint64(i%8)
		tp, dp := member{1000 + i, 656, ""}, member{1000 + i, 328, ""}
		if node == 0 {
			dp.begun--
		}
		if i == 3 {
			tp.begun, tp.state, dp.state = 654, state, state
		}
		job[(1+node)<<56], job[(11+gpu)<<56] = append(job[(1+node)<<56], tp), append(job[(11+gpu)<<56], dp)
		if gpu == 0 {
			job[leaders] = append(job[leaders], dp)
		}
	}
	return job
}

func TestLaggards(t *testing.T) {
	const id = "0xAbc"
	for name, tt := range map[string]struct {
		job  map[uint64][]member
		ids  string
		want []Laggard
	}{
		"equal":           {map[uint64][]member{0xabc: group("1:9 2:9 3:9")}, id, nil},
		"half is behind":  {map[uint64][]member{0xabc: group("1:9 2:9 3:8 4:8")}, id, nil},
		"most are behind": {map[uint64][]member{0xabc: group("1:9 2:8 3:8")}, id, nil},
		"all but one":     {map[uint64][]member{0xabc: group("1:9 2:8 3:8 4:8 5:8 6:8 7:7")}, id, nil},
		"one finalises":   {map[uint64][]member{0xabc: group("1:9:FINALIZE 2:8 3:9")}, id, nil},
		"one has left":    {map[uint64][]member{0xabc: group("1:9:NOCOMM 2:8 3:9 4:9")}, id, nil},
		"never began":     {map[uint64][]member{0xabc: group("1:9 2:0 3:9")}, id, []Laggard{{id, 1, 2, 3, "10.0.0.1", false}}},
		"three counts":    {map[uint64][]member{0xabc: group("1:9 2:8 3:9 4:7 5:9")}, id, []Laggard{{id, 1, 2, 5, "10.0.0.1", false}, {id, 3, 4, 5, "10.0.0.1", false}}},
		"one is dead":     {map[uint64][]member{0xabc: group("1:9 2:9:DEAD")}, id, []Laggard{{id, 1, 2, 2, "10.0.0.1", true}}},
		"another job too": {map[uint64][]member{0xabc: group("1:9 2:9 3:9"), 0xdef: group("4:9 5:8 6:9")}, id, nil},
		"one process for all": {
			map[uint64][]member{0xabc: group("8:9 8:9 8:9 8:8 8:8"), 0xdef: group("8:9 8:8 8:9")},
			id,
			[]Laggard{{"0xdef", 1, 8, 3, "10.0.0.1", false}},
		},
		"unknown processes":  {map[uint64][]member{0xabc: group("0:9 0:8 0:9")}, id, []Laggard{{id, 1, 0, 3, "10.0.0.1", false}}},
		"an unknown process": {map[uint64][]member{0xabc: group("1:9 2:8 3:9"), 0xd: group("0:8 3:9 4:9"), 0xe: group("0:8 3:9 5:9")}, id, []Laggard{{id, 1, 2, 3, "10.0.0.1", false}}},
		// Its seven mates wait in the node's group: they come late to the outer groups.
		"an inner hang, asked from another node": {tensors(""), "0xb0000000000000 0xe0000000000000", []Laggard{{"0x100000000000000", 3, 1003, 8, "10.0.0.1", false}}},
		"a dead process in it":                   {tensors("DEAD"), "0x10000000000000 0xb0000000000000", []Laggard{{"0x10000000000000", 3, 1003, 8, "10.0.0.1", true}}},
	} {
		jsonForm, _ := forms(tt.job)
		t.Run("JSON, "+name, func(t *testing.T) { assert.Equal(t, tt.want, ask(t, jsonForm, "").Laggards(strings.Fields(tt.ids))) })
		delete(tt.job, leaders)
		_, textForm := forms(tt.job)
		t.Run("text, "+name, func(t *testing.T) { assert.Equal(t, tt.want, ask(t, "", textForm).Laggards(strings.Fields(tt.ids))) })
	}
	jsonForm, _ := forms(map[uint64][]member{0xabc: group("1:9 " + strings.Repeat("2:9:DEAD ", 2*maxNamed))})
	assert.Len(t, ask(t, jsonForm, "").Laggards([]string{id}), maxNamed)
	jsonForm, _ = forms(map[uint64][]member{0xabc: group("1:9 2:8 3:9"), 0xdef: group("1:8 2:9 3:9")})
	assert.Empty(t, ask(t, jsonForm, "").Laggards([]string{id}), "each waits for the other")
}

func TestHas(t *testing.T) {
	for hash, ids := range map[string][]string{
		"0xfd68d50b0a729056": {"0xfd68d50b0a7290", "0xFD68D50B0A729056"},
		"0xFD68D50B0A729056": {"0xfd68d50b0a7290"},
		"0x68d50b0a729056":   {"0x68d50b0a729056", "0x0068d50b0a7290"},
		"0x0068d50b0a729056": {"0x68d50b0a729056", "0x0068d50b0a729056"},
		"0x8d50b0a72905612":  {"0x8d50b0a7290561", "0x08d50b0a729056"},
		"0xabc":              {"0xabc", "abc"},
	} {
		r := ask(t, `{"communicators":[{"hash":"`+hash+`"}]}`, "")
		for _, id := range append(ids, "", "0x", "0xa", "0xdeadbeef") {
			assert.Equal(t, slices.Contains(ids, id), r.Has(id), "%s, %s", hash, id)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	jsonForm, textForm := real(t, "ras-hang.txt")
	for name, tt := range map[string][2]string{
		"half of the JSON": {jsonForm[:len(jsonForm)/2], ""},
		"half of the text": {"", strings.SplitAfter(textForm, "Errors\n")[0]},
		"half a line":      {"", strings.TrimRight(textForm, "\n")},
		"a long line":      {"", strings.Repeat("x", maxLine+1) + textForm},
		"a long value":     {`{"communicators":[{"hash":"` + strings.Repeat("0", maxAnswer) + `"}]}`, ""},
		"many ranks":       {`{"communicators":[{"ranks":[` + strings.Repeat("{},", 2*maxPieces) + `{}]}]}`, ""},
		"many lines":       {"", strings.Repeat("\n", 3*maxPieces) + textForm},
		"a page":           {"<html>", ""},
		"a strange rank":   {`{"communicators":[{"ranks":["5"]}]}`, ""},
	} {
		endpoint, _ := fakeras.Serve(t, fakeras.Answers(tt[0], tt[1]))
		_, err := Ask(t.Context(), endpoint)
		assert.ErrorContains(t, err, "RAS at "+endpoint, name)
	}
}

func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"ras-hang.txt", "ras-run.txt"} {
		jsonForm, textForm := real(f, name)
		f.Add("SERVER PROTOCOL 2\nOK\nOK\n" + jsonForm)
		f.Add("SERVER PROTOCOL 2\nOK\nERROR\n" + textForm)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if r, err := parse(answer); err == nil {
			for _, l := range r.Laggards(known) {
				assert.True(t, len(l.Host) < 1<<10 && len(l.Communicator) <= 18 && l.PID >= 0)
			}
		}
	})
}
