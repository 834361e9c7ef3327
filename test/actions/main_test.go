// SPDX-License-Identifier: Apache-2.0

// Package actions runs the actor's binary against a recording API server of Kubernetes and
// against a real Slurm, and kills it.
package actions

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

const root = "../.."

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gpu-collector-actions-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "gpu-collector-actions")
	cmd := exec.Command("go", "build", "-o", out, "./cmd/gpu-collector-actions")
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
})

// actor is a process, over its restarts.
type actor struct {
	t        *testing.T
	dir      string
	config   string
	endpoint string
	env      []string
	cmd      *exec.Cmd
	logs     bytes.Buffer
	ended    chan struct{}
}

// newActor writes the configuration: the shipped one, with the exporter's settings over it.
func newActor(t *testing.T, exporter string, env ...string) *actor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	a := &actor{t: t, dir: t.TempDir(), endpoint: l.Addr().String(), env: env}
	require.NoError(t, l.Close())
	a.config = fmt.Sprintf(`
receivers: {otlp: {protocols: {grpc: {endpoint: %q}}}}
extensions: {healthcheckv2: {http: {endpoint: "127.0.0.1:0"}}}
service: {telemetry: {metrics: {level: none}}}
exporters:
  verdict_actions:
    cluster: prod
    dry_run: false
    poll_interval: 1s
    confirmation: {silence_wait: 0s} # no gateway says anything here
%s`, a.endpoint, exporter)
	t.Cleanup(a.kill)
	return a
}

func (a *actor) start() {
	a.t.Helper()
	path, err := binary()
	require.NoError(a.t, err)
	a.cmd = exec.Command(path, "--config="+root+"/configs/actions.yaml", "--config=yaml:"+a.config)
	a.cmd.Env = append(append(os.Environ(), "STATE_DIRECTORY="+a.dir), a.env...)
	a.cmd.Stdout, a.cmd.Stderr = &a.logs, &a.logs
	require.NoError(a.t, a.cmd.Start())
	a.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // killed
		close(ended)
	}(a.cmd, a.ended)
}

// kill is kill -9.
func (a *actor) kill() {
	if a.cmd == nil {
		return
	}
	_ = a.cmd.Process.Kill() // it may have ended
	<-a.ended
	a.cmd = nil
	if a.t.Failed() {
		a.t.Log(a.logs.String())
	}
}

// push sends a record until the actor takes it, or is dead for good.
func (a *actor) push(ld plog.Logs) error {
	conn, err := grpc.NewClient(a.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // of a test
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = plogotlp.NewGRPCClient(conn).Export(ctx, plogotlp.NewExportRequestFromLogs(ld), grpc.WaitForReady(true))
	return err
}

func (a *actor) mustPush(ld plog.Logs) {
	a.t.Helper()
	a.eventually("a push", func() bool { return a.push(ld) == nil })
}

func (a *actor) eventually(what string, condition func() bool) {
	a.t.Helper()
	require.Eventually(a.t, condition, 60*time.Second, 50*time.Millisecond, what)
}

// decisions are the audit's records as STEP OUTCOME RULE.
func (a *actor) decisions() (list []string) {
	text, err := os.ReadFile(filepath.Join(a.dir, "actions.jsonl"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs([]byte(line))
		if err != nil { // the last line of a kill
			continue
		}
		at := ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes()
		get := func(key string) string {
			v, _ := at.Get(key)
			return v.AsString()
		}
		list = append(list, get(gpusemconv.AttrActionStep)+" "+get(gpusemconv.AttrActionOutcome)+" "+get(gpusemconv.AttrActionRule))
	}
	return list
}

func (a *actor) decided(decision string) {
	a.t.Helper()
	require.EventuallyWithT(a.t, func(c *assert.CollectT) {
		assert.Contains(c, a.decisions(), decision)
	}, 60*time.Second, 50*time.Millisecond)
}

// hot is the onset of an episode with a hardware reason.
func hot(cluster, node string) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rl.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	lr.SetEventName(gpusemconv.EventStraggler)
	for k, v := range map[string]string{
		gpusemconv.AttrEpisodeID: "ep-" + node, gpusemconv.AttrEpisodePhase: "onset", gpusemconv.AttrEpisodeSubject: "node",
		gpusemconv.AttrEpisodeSeverity: "major", gpusemconv.AttrSignal: "throughput", gpusemconv.AttrEpisodeReason: "hw_thermal",
		gpusemconv.AttrEpisodeAction: "check_cooling", gpusemconv.AttrHWID: "GPU-" + node, gpusemconv.AttrPeerGroup: "g",
	} {
		lr.Attributes().PutStr(k, v)
	}
	return ld
}
