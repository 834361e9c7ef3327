// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// nodeDir is a directory of the nodes. Not below /run, which is often mounted
// noexec, so that no library could be loaded from there.
const nodeDir = "/var/lib/gpu-collector-e2e"

// gpus that each node plays.
const gpus = 4

// nodeFiles is a pod on each node through which the test sees and writes the
// node's files: the fake NVML library, what it answers, and what is left behind.
const nodeFiles = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-files, namespace: %[1]s, labels: {app: node-files}}
spec:
  selector: {matchLabels: {app: node-files}}
  template:
    metadata: {labels: {app: node-files}}
    spec:
      terminationGracePeriodSeconds: 0
      automountServiceAccountToken: false
      nodeSelector: {%[4]s: "true"}
      containers:
        - name: files
          image: %[2]s
          command: [sleep, "86400"]
          securityContext: {runAsUser: 0}
          volumeMounts: [{name: dir, mountPath: %[3]s}, {name: host, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}]
      volumes:
        - {name: dir, hostPath: {path: %[3]s, type: DirectoryOrCreate}}
        - {name: host, hostPath: {path: /}}
`

// onNode runs a shell command on a node, as root in the pod of node-files. The
// node's own files are below /host, read-only.
func onNode(t *testing.T, node, stdin, script string, args ...string) string {
	t.Helper()
	pods := get(t, "pods", "-n", namespace, "-l", "app=node-files", "--field-selector", "spec.nodeName="+node)
	require.Len(t, pods, 1, "pods of node-files on %s", node)
	out, err := command(stdin, "kubectl", append([]string{"exec", "-i", "-n", namespace, pods[0].Metadata.Name, "--", "sh", "-ec", script, "sh"}, args...)...)
	require.NoError(t, err)
	return strings.TrimSpace(out)
}

// write replaces files of nodeDir, each in one step: a reader finds the
// former file or the new one.
func write(t *testing.T, node string, files map[string][]byte) {
	t.Helper()
	var archive strings.Builder
	w := tar.NewWriter(&archive)
	for name, text := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := w.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	onNode(t, node, archive.String(), `mkdir -p "$1/new"; tar -x -f - -C "$1/new"; mv "$1"/new/* "$1"; rmdir "$1/new"`, nodeDir)
}

// stateFile is where the agent that calls itself name finds what its library answers.
func stateFile(name string) string { return "state-" + name }

// setState changes what the library of the agent name answers.
func setState(t *testing.T, node, name string, s *fakenvml.State) {
	t.Helper()
	write(t, node, map[string][]byte{stateFile(name): []byte(s.String())})
}

// healthy is a node whose GPUs work.
func healthy() *fakenvml.State { return fakenvml.NewH100(gpus) }

// slowed is one whose GPU 2 is too hot, so that its hardware lowers the clock:
// NVML's clocks event reason 0x40.
func slowed() *fakenvml.State {
	return healthy().SetGPU(slowGPU, "clock.sm", 1200).SetGPU(slowGPU, "clock.graphics", 1200).
		SetGPU(slowGPU, "throttle", "0x40").SetGPU(slowGPU, "temperature", 91)
}

const (
	slowGPU    = 2
	slowReason = "hw_thermal"
)

// exists returns which of the paths the node has.
func exists(t *testing.T, node string, paths []string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for p := range strings.FieldsSeq(onNode(t, node, "", `for p; do if [ -e "/host$p" ]; then echo "$p"; fi; done`, paths...)) {
		found[p] = true
	}
	return found
}
