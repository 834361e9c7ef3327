// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// play writes a recording of NCCL's Inspector in its own time, again and again, as a job
// that goes on.
func play(t *testing.T, recording, file string) {
	t.Helper()
	packed, err := os.Open(filepath.Join("../../receiver/ncclreceiver/testdata", recording))
	require.NoError(t, err)
	defer func() { require.NoError(t, packed.Close()) }()
	text, err := gzip.NewReader(packed)
	require.NoError(t, err)
	var lines [][]byte
	for s := bufio.NewScanner(text); s.Scan(); {
		lines = append(lines, bytes.Clone(s.Bytes()))
	}
	stamp := []byte(`"dump_timestamp_us":`)
	at := func(line []byte) (from int, us int64) {
		from = bytes.Index(line, stamp) + len(stamp)
		_, err := fmt.Sscan(string(line[from:from+16]), &us)
		require.NoError(t, err)
		return from, us
	}
	to, err := os.Create(file)
	require.NoError(t, err)
	t.Cleanup(func() { _ = to.Close() })
	go func() {
		w := bufio.NewWriter(to)
		for t.Context().Err() == nil {
			began := time.Now()
			_, first := at(lines[0])
			for _, line := range lines {
				from, us := at(line)
				if wait := time.Until(began.Add(time.Duration(us-first) * time.Microsecond)); wait > 0 {
					if w.Flush() != nil {
						return
					}
					select {
					case <-t.Context().Done():
						return
					case <-time.After(wait): // a collective's duration is what it took on the clock
					}
				}
				_, _ = fmt.Fprintf(w, "%s%d%s\n", line[:from], time.Now().UnixMicro(), line[from+16:])
			}
		}
	}()
}

// The ranks of a real job take the same time for a step. Of NCCL's own records the gateway
// learns which of them the others wait for.
func TestTheSlowRankOfARealJob(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gateway := startGateway(t, "processors: {straggler: {push_interval: 1s, ttl_multiplier: 60}}\n")
	play(t, "slow-rank3.log.gz", filepath.Join(dir, "vm-pid14702.log"))
	process.Run(t, process.Options{
		Config: []string{"configs/agent.yaml", "configs/overlays/nccl.yaml", `
receivers: {nccl: {collection_interval: 1s}}
processors: {straggler: {push_interval: 1s}}
service: {pipelines: {metrics: {receivers: [fleet_otlp, nccl]}}}
`},
		Env: []string{"GPU_COLLECTOR_NCCL=" + dir, "GPU_COLLECTOR_CLUSTER=lab", "GPU_COLLECTOR_GATEWAY=" + gateway.GRPC, "GPU_COLLECTOR_INSECURE=true"},
	})
	gateway.WaitLog(1, "Straggler ", ", rank 3", " longer between collectives than its peers; the other ranks wait ", " of their time for it")
}
