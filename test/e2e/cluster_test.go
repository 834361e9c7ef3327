// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// commandTimeout bounds a single command; helm's own --timeout is below it.
const commandTimeout = 6 * time.Minute

// command runs a tool with an input and returns its output.
func command(stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, out.String(), problems.String())
	}
	return out.String(), nil
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command("", "kubectl", args...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// apply creates or changes what the manifest has.
func apply(t *testing.T, manifest string) {
	t.Helper()
	_, err := command(manifest, "kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(t, err)
}

func helm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command("", "helm", append(args, "--namespace", namespace)...)
	require.NoError(t, err)
	return out
}

// object is the part of a Kubernetes object that the tests look at.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		Labels            map[string]string `json:"labels"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName   string                   `json:"nodeName"`
		Replicas   *int                     `json:"replicas"`
		Containers []struct{ Image string } `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase             string                          `json:"phase"`
		PodIP             string                          `json:"podIP"`
		Conditions        []struct{ Type, Status string } `json:"conditions"`
		ContainerStatuses []struct{ RestartCount int }    `json:"containerStatuses"`
	} `json:"status"`
}

func (o object) ready() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True" && o.Metadata.DeletionTimestamp == nil
		}
	}
	return false
}

func get(t *testing.T, args ...string) []object {
	t.Helper()
	var list struct{ Items []object }
	require.NoError(t, json.Unmarshal([]byte(kubectl(t, append([]string{"get", "-o", "json"}, args...)...)), &list))
	return list.Items
}

// component lists the release's pods of one component.
func component(t *testing.T, name string) []object {
	t.Helper()
	return get(t, "pods", "-n", namespace, "-l", "app.kubernetes.io/instance="+release+",app.kubernetes.io/component="+name)
}

// launch starts kubectl beside the test, and waits for the line with its address. It ends
// with the test, or by stop.
func launch(t *testing.T, listens *regexp.Regexp, args ...string) (addr string, stop func()) {
	t.Helper()
	// Not with the test's context, which ends before the clean-up stops it.
	cmd := exec.CommandContext(context.Background(), "kubectl", args...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	t.Cleanup(stop)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := listens.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, out) }() // a full pipe would stop it
			return m[1], stop
		}
	}
	require.Fail(t, "kubectl "+strings.Join(args, " ")+" does not listen")
	return "", nil
}

var (
	proxyLine   = regexp.MustCompile(`Starting to serve on (\S+)`)
	forwardLine = regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
)

// forward returns a local address of the OTLP port of a service.
func forward(t *testing.T, service string) (addr string, stop func()) {
	t.Helper()
	return launch(t, forwardLine, "port-forward", "-n", namespace, "--address", "127.0.0.1", "service/"+service, ":4317")
}
