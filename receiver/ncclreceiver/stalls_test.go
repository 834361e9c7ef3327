// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

// stalled is a job of one rank whose operations have ended, and a clock.
func stalled(t *testing.T, address, rank string) (r *rig, path string, now *time.Time) {
	r = newRig(t, func(cfg *Config) { cfg.RAS.Endpoint = address })
	t.Cleanup(r.s.stalls.shutdown)
	clock := time.Unix(1000, 0)
	now = &clock
	r.s.now = func() time.Time { return *now }
	path, _ = r.rank("RANK="+rank, "SLURM_JOB_ID=7")
	r.add(path, "")
	r.scrape()
	r.move(path, now)
	return r, path, now
}

// move lets an operation end now.
func (r *rig) move(path string, now *time.Time) {
	r.at = time.Duration(now.UnixNano())
	r.add(path, r.line("0x00AB", 100))
	r.scrape()
}

// pass scrapes each ten seconds. An answer that is under way comes first.
func (r *rig) pass(now *time.Time, d time.Duration) (got map[string]float64) {
	for end := now.Add(d); now.Before(end); {
		*now = now.Add(10 * time.Second)
		got = r.scrape()
		r.s.stalls.done.Wait()
	}
	return got
}

const laggard = "gpu.collective.laggard 7 0x00AB behind"

func TestRASNamesTheLaggardOfAStall(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0xab", 5, 5, 4, 5))
	r, path, now := stalled(t, server.Address, "0")
	for range 5 { // steps of half a minute
		r.pass(now, 30*time.Second)
		r.move(path, now)
	}
	assert.LessOrEqual(t, server.Asked(), 1, "before its pauses are known")
	server.Forget()
	r.pass(now, 30*time.Second)
	assert.Zero(t, server.Asked())
	assert.NotContains(t, r.pass(now, 60*time.Second), laggard, "one answer says nothing")
	assert.Equal(t, 1, server.Asked())
	assert.Contains(t, r.pass(now, 10*time.Second), laggard)
	assert.Equal(t, 2, server.Asked(), "once a minute")
	assert.Contains(t, r.pass(now, time.Hour), laggard)
	assert.Equal(t, 2, server.Asked(), "and never again about this stall")
	r.move(path, now)
	assert.NotContains(t, r.scrape(), laggard)
	assert.Equal(t, 2, server.Asked())
}

func TestRASNamesNobodyWithoutADifference(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0xab", 5, 5, 5, 5))
	r, _, now := stalled(t, server.Address, "0")
	assert.NotContains(t, r.pass(now, time.Hour), laggard)
	assert.Equal(t, 2, server.Asked())
}

func TestRASOfAMissingRank(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0xab", 5, -1, 5, 5))
	r, _, now := stalled(t, server.Address, "0")
	assert.Contains(t, r.pass(now, 5*time.Minute), "gpu.collective.laggard 7 0x00AB missing")
}

// The agents of a job's nodes ask one after the other.
func TestTheFirstRanksAskFirst(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0xab", 5, 4, 5))
	r, _, now := stalled(t, server.Address, "3") // of three nodes with a rank each it is the last
	r.pass(now, 6*time.Minute)
	assert.Zero(t, server.Asked())
	r.pass(now, 3*time.Minute)
	assert.Equal(t, 2, server.Asked())
}

// A service that cannot be asked, or does not answer, is logged once.
func TestRASThatDoesNotTell(t *testing.T) {
	old := fakeras.Start(t, 28, fakeras.Status("0xab", 5, 4, 5))
	other := fakeras.Start(t, 29, fakeras.Status("0xcd", 5, 4, 5))
	for name, tt := range map[string]struct {
		address string
		warned  int
	}{"too old": {old.Address, 1}, "another job": {other.Address, 0}, "nobody": {"127.0.0.1:1", 1}} {
		t.Run(name, func(t *testing.T) {
			r, path, now := stalled(t, tt.address, "0")
			assert.NotContains(t, r.pass(now, time.Hour), laggard)
			r.move(path, now)
			assert.NotContains(t, r.pass(now, time.Hour), laggard)
			assert.Equal(t, tt.warned, r.logs.FilterMessage("a job stands still, and NCCL's RAS service does not tell who holds it up").Len())
		})
	}
	assert.Zero(t, old.Asked())
	assert.GreaterOrEqual(t, other.Asked(), mostAsked)
	assert.LessOrEqual(t, other.Asked(), 2*mostAsked)
}

func TestRASCanBeOff(t *testing.T) {
	server := fakeras.Start(t, 29, fakeras.Status("0xab", 5, 4, 5))
	r, _, now := stalled(t, server.Address, "0")
	r.s.cfg.RAS.Enabled = false
	r.pass(now, time.Hour)
	assert.Zero(t, server.Asked())

	cfg := createDefaultConfig().(*Config)
	cfg.Directories, cfg.RAS = []string{"/x"}, RASConfig{Enabled: true, Endpoint: "localhost"}
	require.ErrorContains(t, cfg.Validate(), "`ras::endpoint` is \"localhost\": it has to be a host and a port, such as localhost:28028")
	require.ErrorContains(t, cfg.Validate(), "`ras::after` is 0s: it has to be at least 1s")
}
