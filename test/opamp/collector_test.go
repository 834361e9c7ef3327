// SPDX-License-Identifier: Apache-2.0

package opamp

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// collector is a running Collector of run.sh's.
type collector struct {
	dir     string
	process *os.Process
	ends    chan error
}

// start runs the Collector with the agent's configuration and the overlay over
// it, which can be written anew.
func start(t *testing.T, overlay string, args, env []string) *collector {
	t.Helper()
	binary := os.Getenv("COLLECTOR")
	require.NotEmpty(t, binary, "run.sh builds one and names it in COLLECTOR")
	c := &collector{dir: t.TempDir(), ends: make(chan error, 1)}
	agent, err := filepath.Abs("../../configs/agent.yaml")
	require.NoError(t, err)
	text, err := os.ReadFile(agent)
	require.NoError(t, err)
	// Each test on ports of its own.
	base := strings.NewReplacer("127.0.0.1:4317", free(t), "127.0.0.1:4318", free(t), "127.0.0.1:13133", free(t)).Replace(string(text))
	require.NoError(t, os.WriteFile(c.file("base.yaml"), []byte(base), 0o600))
	c.write(t, overlay)
	log, err := os.Create(c.file("log"))
	require.NoError(t, err)
	cmd := exec.Command(binary, append([]string{
		"--config", c.file("base.yaml"), "--config", c.file("overlay.yaml"),
		"--config", "yaml:service::telemetry::metrics::level: none",
	}, args...)...)
	cmd.Env = append([]string{"HOME=" + c.dir, "GPU_COLLECTOR_GATEWAY=" + free(t), "GPU_COLLECTOR_INSECURE=true"}, env...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	c.process = cmd.Process
	gone := make(chan struct{})
	go func() {
		c.ends <- cmd.Wait()
		close(gone)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-gone:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-gone
		}
		_ = log.Close()
		if t.Failed() {
			// There is no gateway, which is not what a test is about.
			t.Log(regexp.MustCompile(`(?m)^.*(grpc_log|otlp_grpc).*\n`).ReplaceAllString(c.log(t), ""))
		}
	})
	return c
}

func (c *collector) file(name string) string { return filepath.Join(c.dir, name) }

func (c *collector) write(t *testing.T, overlay string) {
	t.Helper()
	require.NoError(t, os.WriteFile(c.file("overlay.yaml"), []byte(overlay), 0o600))
}

func (c *collector) log(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(c.file("log"))
	require.NoError(t, err)
	return string(text)
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
