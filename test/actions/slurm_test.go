// SPDX-License-Identifier: Apache-2.0

package actions

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slurm is a real slurmctld with two slurmd, as root and without munge.
type slurm struct {
	t    *testing.T
	dir  string
	conf string
}

func startSlurm(t *testing.T) *slurm {
	if os.Getenv("ACTIONS_SLURM") == "" {
		t.Skip("`make test-slurm` runs it: it needs root and the packages slurmctld, slurmd and slurm-client")
	}
	s := &slurm{t: t, dir: t.TempDir()}
	s.conf = filepath.Join(s.dir, "slurm.conf")
	ports, held := make([]any, 3), make([]net.Listener, 3)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ports[i], held[i] = l.Addr().(*net.TCPAddr).Port, l
	}
	for _, l := range held {
		require.NoError(t, l.Close())
	}
	text := fmt.Sprintf(`ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=%[1]d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation=%[4]s
SlurmdSpoolDir=%[4]s/spool-%%n
SlurmdPidFile=%[4]s/slurmd-%%n.pid
SlurmctldPidFile=%[4]s/slurmctld.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SchedulerType=sched/builtin
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port=%[2]d CPUs=1
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=%[3]d CPUs=1
PartitionName=p Nodes=n1,n2 Default=YES State=UP
`, append(ports, s.dir)...)
	require.NoError(t, os.WriteFile(s.conf, []byte(text), 0o600))
	for _, args := range [][]string{{"slurmctld", "-D"}, {"slurmd", "-D", "-N", "n1"}, {"slurmd", "-D", "-N", "n2"}} {
		s.daemon(args...)
	}
	require.Eventually(t, func() bool { return s.is("n1", "IDLE") && s.is("n2", "IDLE") }, time.Minute, 100*time.Millisecond, "two nodes are idle")
	return s
}

func (s *slurm) daemon(args ...string) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.conf)
	log, err := os.Create(filepath.Join(s.dir, strings.Join(args, "")+".log"))
	require.NoError(s.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // killed
		_ = log.Close()        // of a test
		if text, err := os.ReadFile(log.Name()); s.t.Failed() && err == nil {
			s.t.Logf("%v\n%s", args, text[max(0, len(text)-4000):])
		}
	})
}

func (s *slurm) run(args ...string) string {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.conf)
	cmd.Dir = s.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "error: " + string(out)
	}
	return string(out)
}

func (s *slurm) show(node string) string {
	return s.run("scontrol", "show", "node", node, "--oneliner")
}

func (s *slurm) is(node, state string) bool {
	return strings.Contains(s.show(node), " State="+state+" ")
}

func (s *slurm) waitFor(state string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.is("n1", state) }, time.Minute, 100*time.Millisecond, "n1 is not %s", state)
}

// A drain with our reason, the job runs on, the burn-in fails and then passes, and only
// our own drain is resumed.
func TestSlurm(t *testing.T) {
	s := startSlurm(t)
	verdict := filepath.Join(s.dir, "verdict")
	script := filepath.Join(s.dir, "burn-in")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho \"$1: gemm\"; cat "+verdict+"\n"), 0o700))
	a := newActor(t, fmt.Sprintf(`
    breaker: {max_nodes: 2, max_per_hour: 10, max_fraction: 1}
    burn_in: {after_drain: true, retest: 1s}
    slurm:
      rungs: {drain: true, burn_in: true}
      burn_in_command: [%q]
`, script), "SLURM_CONF="+s.conf)
	a.start()
	out := s.run("sbatch", "-w", "n1", "-o", filepath.Join(s.dir, "out"), "--wrap", "while [ ! -e "+s.dir+"/end ]; do sleep 0.2; done; echo done")
	require.Contains(t, out, "Submitted")
	s.waitFor("ALLOCATED")

	a.mustPush(hot("prod", "n1"))
	s.waitFor("ALLOCATED+DRAIN")
	assert.Contains(t, s.show("n1"), "Reason=gpu-collector case=c")
	assert.Contains(t, s.run("squeue", "-h", "-o", "%T"), "RUNNING", "the job runs on")
	assert.NotContains(t, s.show("n2"), "Reason=")

	// Somebody else drains n2 first: that is theirs.
	s.run("scontrol", "update", "nodename=n2", "state=drain", "reason=bob: psu swap")
	a.mustPush(hot("prod", "n2"))
	a.decided("drain refused foreign_change")

	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "end"), nil, 0o600))
	a.decided("burn_in taken test_failed")
	assert.True(t, s.is("n1", "IDLE+DRAIN"), "a failed test gives nothing back")
	require.NoError(t, os.WriteFile(verdict, []byte("pass"), 0o600))
	a.decided("burn_in taken test_passed")
	s.waitFor("IDLE")
	assert.Contains(t, s.show("n2"), "Reason=bob: psu swap")
	assert.True(t, s.is("n2", "IDLE+DRAIN"))

	// A drain of ours whose reason a person replaced is not resumed.
	a.mustPush(hot("prod", "n1")) // on probation: a relapse
	s.waitFor("IDLE+DRAIN")
	s.run("scontrol", "update", "nodename=n1", "state=drain", "reason=kim: I look at it")
	// One more when the change is seen before the undo, and another when the undo meets it.
	a.eventually("the second refusal", func() bool {
		return strings.Count(strings.Join(a.decisions(), "\n")+"\n", "drain refused foreign_change\n") >= 2
	})
	a.kill()
	assert.Contains(t, s.show("n1"), "Reason=kim: I look at it")
	assert.True(t, s.is("n1", "IDLE+DRAIN"))
}
