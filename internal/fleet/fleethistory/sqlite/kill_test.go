// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

const (
	killPath  = "FLEET_HISTORY_KILL_PATH"
	killFirst = "FLEET_HISTORY_KILL_FIRST"
	killRows  = 200
	// killAfter rounds at the latest, or what a fast machine writes would have to
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

// writeUntilKilled prints the number of each stored round.
func writeUntilKilled(path string, first int) {
	s := New(Config{Path: path, QueryTimeout: time.Minute})
	for n := first; ; n++ {
		rows := make([]*fleethistory.Row, killRows)
		for i := range rows {
			rows[i] = node(strconv.Itoa(i), float64(n))
		}
		err := s.WriteEpisodes(context.Background(), []*episode.Episode{{ID: strconv.Itoa(n)}}, nil, false)
		if err == nil {
			err = s.WriteRound(context.Background(), base.Add(time.Duration(n)*time.Minute), slices.Values(rows))
		}
		if err != nil {
			fmt.Println("error", err)
			return
		}
		fmt.Println(n)
	}
}

// TestKill ends the process of a writer at any time, and again on what it left: each round that
// it reported as stored is there as a whole, and of the one after it all or nothing.
func TestKill(t *testing.T) {
	cfg := testConfig(t)
	next, random := 0, rand.New(rand.NewPCG(1, 1))
	for run := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killPath+"="+cfg.Path, killFirst+"="+strconv.Itoa(next))
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "a first round")
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

		s := open(t, cfg)
		require.NoError(t, integrity(t.Context(), s.db.write))
		list, err := fleethistory.Aggregate(t.Context(), s, &fleethistory.Query{Start: base, End: base.AddDate(1, 0, 0), Metrics: []string{"gpu.node.health_score"}}, fleethistory.ByHost)
		require.NoError(t, err)
		require.Len(t, list, killRows)
		n := list[0].Count
		for _, a := range list {
			require.Equal(t, []any{n, 0., float64(n - 1), float64(n*(n-1)) / 2}, []any{a.Count, a.Min, a.Max, a.Sum}, "rounds are whole, and none is missing")
		}
		assert.GreaterOrEqual(t, n, int64(acknowledged+1))
		assert.LessOrEqual(t, n, int64(acknowledged+2), "one round may be stored and not yet acknowledged")
		episodes, err := s.Episodes(t.Context())
		require.NoError(t, err)
		assert.GreaterOrEqual(t, len(episodes), int(n), "they come first")
		assert.LessOrEqual(t, len(episodes), int(n)+1)
		assert.Empty(t, s.Status().Note, "the file was never put aside")
		require.NoError(t, s.Close())
		t.Logf("run %d: %d rounds acknowledged, %d there", run, acknowledged+1, n)
		next = int(n)
	}
}
