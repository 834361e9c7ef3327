// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

const (
	killPath  = "FLEET_HISTORY_KILL_PATH"
	killFirst = "FLEET_HISTORY_KILL_FIRST"
	killRows  = 200
	// killAfter batches at the latest, or what a fast machine writes would have to
	// be looked through again and again.
	killAfter = 30
)

func TestMain(m *testing.M) {
	if path := os.Getenv(killPath); path != "" {
		first, _ := strconv.Atoi(os.Getenv(killFirst))
		writeUntilKilled(path, first)
		return
	}
	goleak.VerifyTestMain(m)
}

// writeUntilKilled prints the number of each stored batch.
func writeUntilKilled(path string, first int) {
	s := New(Config{Path: path, MaxSeries: 1e6, QueryTimeout: time.Minute, MaxBytes: 1 << 40, Retention: 1e6 * time.Hour, Now: func() time.Time { return base }})
	for n := first; ; n++ {
		if err := s.Append(context.Background(), killBatch(n), []fleethistory.Episode{{ID: strconv.Itoa(n), Updated: int64(n), Record: []byte("x")}}); err != nil {
			fmt.Println("error", err)
			return
		}
		fmt.Println(n)
		if _, err := s.Maintain(context.Background()); err != nil {
			fmt.Println("error", err)
			return
		}
	}
}

// killBatch is the n-th batch: half of the series are new ones.
func killBatch(n int) []fleethistory.Sample {
	batch := make([]fleethistory.Sample, killRows)
	for i := range batch {
		node := "n" + strconv.Itoa(i)
		if i%2 == 0 {
			node = fmt.Sprintf("n%d-%d", i, n%20)
		}
		batch[i] = sample(node, base.Add(-time.Duration(n)*time.Minute), float64(n))
	}
	return batch
}

// TestKill ends the process of a writer at any time, and again on what it left:
// each batch that it reported as stored is there as a whole, and of the one after
// it all or nothing.
func TestKill(t *testing.T) {
	cfg := testConfig(t)
	next, random := 0, rand.New(rand.NewPCG(1, 1))
	for round := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killPath+"="+cfg.Path, killFirst+"="+strconv.Itoa(next))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "a first batch")
		time.AfterFunc(time.Duration(random.Int64N(int64(300*time.Millisecond))), func() { _ = cmd.Process.Kill() })
		last := lines.Text()
		for left := random.IntN(killAfter); lines.Scan(); left-- {
			if last = lines.Text(); left == 0 {
				_ = cmd.Process.Kill() // the rest of its output is read on
			}
		}
		require.Error(t, cmd.Wait(), "killed")
		acknowledged, err := strconv.Atoi(last)
		require.NoError(t, err, last)

		s := New(cfg)
		require.NoError(t, s.Open(t.Context()))
		require.NoError(t, integrity(t.Context(), s.db.Load().write))
		rows, err := s.db.Load().read.Query("SELECT at, count(*), min(value), max(value) FROM samples GROUP BY at ORDER BY at DESC")
		require.NoError(t, err)
		n := 0
		for ; rows.Next(); n++ {
			var at, count int64
			var low, high float64
			require.NoError(t, rows.Scan(&at, &count, &low, &high))
			require.Equal(t, base.Add(-time.Duration(n)*time.Minute).UnixMilli(), at, "batch %d is missing", n)
			require.EqualValues(t, killRows, count, "batch %d is not whole", n)
			require.InDelta(t, n, low, 0)
			require.InDelta(t, n, high, 0)
		}
		require.NoError(t, rows.Err())
		require.NoError(t, rows.Close())
		assert.GreaterOrEqual(t, n, acknowledged+1)
		assert.LessOrEqual(t, n, acknowledged+2, "one batch may be stored and not yet acknowledged")
		episodes, err := s.Episodes(t.Context(), 1_000_000)
		require.NoError(t, err)
		assert.Len(t, episodes, n)
		assert.Empty(t, s.Status().Note, "the file was never put aside")
		require.NoError(t, s.Close())
		t.Logf("round %d: %d batches acknowledged, %d there", round, acknowledged+1, n)
		next = n
	}
}
