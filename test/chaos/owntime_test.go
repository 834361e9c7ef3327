// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOwnClock has the clock of a tier set by an hour, there and back, and later
// first, while the others' are right: what it receives is late or early, what it
// hands on too. The binary is one whose wall clock can be set, see
// scripts/shifted.sh; timers go on, as they do on a machine whose clock is set.
func TestOwnClock(t *testing.T) {
	if *shifted == "" {
		t.Skip("`make chaos` builds what is needed")
	}
	t.Parallel()
	clocks := map[*member]string{}
	w := newWorld(t, setup{prepare: func(m *member) {
		clocks[m] = filepath.Join(t.TempDir(), "clock")
		c := m.Command()
		c.Path, c.Env = *shifted, append(c.Env, "CHAOS_CLOCK="+clocks[m])
		m.Replace(c)
	}})
	// In the short form one tier, by turns of the seed.
	tiers := []*member{w.gateway, w.shard, w.agents[0]}
	if testing.Short() {
		tiers = tiers[*seed%3:][:1]
	}
	for _, m := range tiers {
		for _, tc := range []struct {
			name string
			by   time.Duration
		}{
			{"an hour ahead", time.Hour},
			{"right again", 0},
			{"an hour behind", -time.Hour},
			{"right at last", 0},
		} {
			t.Run(m.name+" "+tc.name, func(t *testing.T) {
				w.suffer(func() {
					require.NoError(t, os.WriteFile(clocks[m], []byte(strconv.Itoa(int(tc.by.Seconds()))), 0o600))
					time.Sleep(5 * interval)
					require.WithinDuration(t, time.Now().Add(tc.by), m.now(t), 10*time.Minute)
				})
				w.recovered(t)
			})
		}
	}
}

// now is what time it is to the process.
func (m *member) now(t *testing.T) time.Time {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.pprof+"/debug/pprof/cmdline", http.NoBody)
	require.NoError(t, err)
	resp, err := httpClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	at, err := http.ParseTime(resp.Header.Get("Date"))
	require.NoError(t, err)
	return at
}
