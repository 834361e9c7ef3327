// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

func TestBadFlags(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for args, want := range map[string]string{
		"-nodes 0":                    "-nodes is 0, must be at least 1",
		"-nodes x":                    `invalid value "x" for flag -nodes`,
		"-gpus 0":                     "-gpus is 0, must be at least 1",
		"-clusters 0":                 "-clusters is 0, must be at least 1",
		"-connections 0 -in-flight 0": "-connections is 0, must be between 1 and 1000\n-in-flight is 0, must be between 1 and 100000",
		"-gpus 65":                    "-gpus is 65, must be between 1 and 64",
		"-jobs 200":                   "-jobs is 200, must be between 1 and 100",
		"-clusters 101":               "-clusters is 101, must be between 1 and 100",
		"-runs -1h -pause -1s":        "-runs is -1h0m0s, must be 0s or more\n-pause is -1s, must be 0s or more",
		"-compression lzma":           `-compression is "lzma", must be one of none, gzip, zstd, snappy`,
		"-interval -1s":               "-interval is -1s, must be 0s or more",
		"-duration -1s":               "-duration is -1s, must be 0s or more",
		"-timeout 0s":                 "-timeout is 0s, must be more than 0s",
		"-fault slow_node:100":        "-fault slow_node of node 100: node is 100, must be one of the 100 nodes",
		"-fault slow_node:x%":         "fault \"slow_node:x%\" must be `kind:node[:gpu][@from[-until]][=severity]`",
		"-fault lost_gpu:30%:8":       "-fault lost_gpu of 30 % of nodes: gpu is 8, must be below the 8 of the node",
		"-ca /nowhere":                "failed to load CA CertPool",
		"-ca " + empty:                "failed to parse cert",
		"-cert a":                     "provide both certificate and key, or neither",
		"-cert a -key b":              "failed to load TLS cert and key",
		"-insecure -ca " + empty:      "-insecure does not go with -ca, -cert and -key",
		"-what":                       "flag provided but not defined: -what; -help lists the flags",
		"push":                        `argument "push" is no flag`,
		"-nodes 0 -timeout 0s":        "-timeout is 0s",
	} {
		var out, diagnostics bytes.Buffer
		assert.Equal(t, exitUsage, run(strings.Fields(args), &out, &diagnostics), args)
		assert.Contains(t, diagnostics.String(), want, args)
		assert.Empty(t, out.String(), args)
	}
}

func TestFlagsBecomeTheFleet(t *testing.T) {
	o, err := parse(strings.Fields("-endpoint gateway:4317 -nodes 20 -gpus 4 -interval 2s -jobs 3 -clusters 2 -cluster lab "+
		"-raw -runs 1h -pause 5m -seed 9 -timeout 3s -connections 4 -in-flight 5 -compression zstd -fault slow_node:7@5m-10m=0.3 -fault lost_gpu:8:1 -fault slow_node:30%@5m-10m=0.3"), io.Discard)
	require.NoError(t, err)
	o.fleet.Start = time.Time{}
	assert.Equal(t, fleetpush.Config{
		Nodes: 20, GPUs: 4, Cluster: "lab", Clusters: 2, Jobs: 3, Runs: time.Hour, Pause: 5 * time.Minute, Seed: 9, Step: 2 * time.Second, Raw: true,
		Faults: []fleetsim.Fault{
			{Node: 7, Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.3},
			{Node: 8, Kind: fleetsim.LostGPU, GPU: 1},
			{Share: 0.3, Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.3},
		},
	}, o.fleet)
	assert.False(t, o.push.TLS.Insecure, "TLS is the default but on loopback")
	o.push.TLS = fleetpush.DefaultPushConfig().TLS
	want := fleetpush.DefaultPushConfig()
	want.Endpoint, want.Interval, want.Timeout, want.Connections, want.InFlight, want.Compression = "gateway:4317", 2*time.Second, 3*time.Second, 4, 5, "zstd"
	assert.Equal(t, want, o.push)

	o, err = parse(strings.Fields("-interval 0s"), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, 10*time.Second, o.fleet.Step, "the world goes on at an agent's pace")
}

func TestWhereTLSIsOn(t *testing.T) {
	for endpoint, plain := range map[string]bool{
		"127.0.0.1:4317": true, "[::1]:4317": true, "localhost:4317": true, "10.0.0.1:4317": false, "dns:///gateway:4317": false, "gateway": false,
	} {
		o, err := parse([]string{"-endpoint", endpoint}, io.Discard)
		require.NoError(t, err)
		assert.Equal(t, plain, o.push.TLS.Insecure, endpoint)
	}
	o, err := parse([]string{"-endpoint", "gateway:4317", "-insecure"}, io.Discard)
	require.NoError(t, err)
	assert.True(t, o.push.TLS.Insecure)
}

// Without anybody there the report is written all the same, and the exit code
// reports that nothing was accepted.
func TestNothingAccepted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	var out, diagnostics bytes.Buffer
	code := run([]string{"-endpoint", loopback.FreeAddr(t), "-nodes", "4", "-gpus", "1", "-fault", "slow_node:50%@1h", "-interval", "10ms", "-duration", "1s", "-json", file}, &out, &diagnostics)
	assert.Equal(t, exitFailed, code)
	assert.Regexp(t, `none of \d+ pushes to 127.0.0.1:\d+ was accepted`, diagnostics.String())
	assert.Contains(t, out.String(), "Unavailable")
	assert.Contains(t, out.String(), "50 % of nodes: slow_node, from 3600 s, was found by none of 2 nodes\n")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var r fleetpush.Report
	require.NoError(t, json.Unmarshal(text, &r))
	assert.Equal(t, 4, r.Nodes)
	require.Len(t, r.Faults, 1)
	assert.Equal(t, 2, r.Faults[0].Nodes)
	assert.Positive(t, r.Refusals["Unavailable"])
}

// The files name the GPU that a fault slows down. A lost GPU ends them.
func TestNCCLFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new")
		o, err := parse(strings.Fields("-nodes 2 -gpus 2 -fault neighbour:1:1@20s=0.4 -fault lost_gpu:0:1@60s -nccl "+dir), io.Discard)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
		defer cancel()
		require.NoError(t, play(ctx, o, io.Discard, io.Discard))
		var seconds [4][7]float64 // in operations, in each ten seconds
		for r := range seconds {
			text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("node-%06d-pid%d.log", r/2, 1000+r)))
			require.NoError(t, err)
			for _, found := range regexp.MustCompile(`_timestamp_us":(\d+).*"coll_exec_time_us":(\d+)`).FindAllStringSubmatch(string(text), -1) {
				at, _ := strconv.ParseInt(found[1], 10, 64)
				took, _ := strconv.ParseFloat(found[2], 64)
				seconds[r][time.UnixMicro(at-1e6).Sub(o.fleet.Start)/(10*time.Second)] += took / 1e6
			}
		}
		for r := range 3 {
			assert.InEpsilon(t, seconds[3][1], seconds[r][1], 0.2)
			assert.Greater(t, seconds[r][4], seconds[3][4]*3/2)
			assert.Less(t, seconds[r][6], seconds[r][5]/2, "the lost GPU stops all")
		}
	})
}

// Every flag is in the document.
func TestTheDocumentHasEveryFlag(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var diagnostics bytes.Buffer
	require.Equal(t, exitOK, run([]string{"-help"}, io.Discard, &diagnostics))
	assert.Contains(t, diagnostics.String(), "-endpoint host:port")
	for line := range strings.Lines(diagnostics.String()) {
		if name, ok := strings.CutPrefix(line, "  -"); ok {
			name = strings.Fields(name)[0]
			assert.Contains(t, string(text), "`-"+name+"`", "flag %s", name)
		}
	}
	for _, kind := range fleetsim.Kinds() {
		assert.Contains(t, string(text), "`"+string(kind)+"`", "fault %s", kind)
	}
}
