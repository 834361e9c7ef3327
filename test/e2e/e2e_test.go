// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	nodeLabel    = "gpu-collector.test/node"
	serversLabel = "gpu-collector.test/servers" // of the node of gateway and shards

	gatewayName = release + "-gpu-collector-gateway"
	shardName   = release + "-gpu-collector-shard"
)

// peers are further releases of agents alone. Of two nodes none can be found slow.
// So each node runs an agent of each release, with a name and GPUs of its own.
var peers = []string{"peer-a", "peer-b"}

// releases are all releases of the chart.
func releases() []string { return append([]string{release}, peers...) }

// deployment is what the tests share, one after the other.
type deployment struct {
	view  view
	nodes []string // real ones, at least two
	names []string // under which agents push

	certs *certificates

	// The cluster's state before the first install.
	crds      string
	paths     []string
	hostPaths map[string]map[string]bool
}

// agentName is what the agent of a release calls itself on a node.
func agentName(node, rel string) string {
	if rel == release {
		return node
	}
	return node + "-" + rel
}

func TestKubernetes(t *testing.T) {
	if image == "" {
		t.Skip("E2E_IMAGE is not set; see README.md")
	}
	for _, tool := range []string{"kubectl", "helm"} {
		_, err := exec.LookPath(tool)
		require.NoError(t, err)
	}
	d := &deployment{view: newView(t)}
	t.Cleanup(func() { d.cleanUp(t) })
	for _, step := range []struct {
		name string
		run  func(*testing.T)
		must bool // without it the others prove nothing
	}{
		{"QuickStart", d.quickStart, false},
		{"Install", d.install, true},
		{"StragglerIsNamed", d.straggler, false},
		{"Upgrade", d.upgrade, false},
		{"Rollback", d.rollback, false},
		{"ShardsComeAndGo", d.scaleShards, false},
		{"SecretsRotate", d.rotateSecrets, false},
		{"GatewayIsKilled", d.killGateway, false},
		{"NodeIsCutOff", d.cutOff, false},
		{"HundredNodes", d.hundredNodes, false},
		{"Uninstall", d.uninstall, false},
	} {
		began := time.Now()
		progress("=== %s", step.name)
		ok := t.Run(step.name, step.run)
		progress("=== %s: %s after %.1fs", step.name, map[bool]string{true: "ok", false: "FAILED"}[ok], time.Since(began).Seconds())
		if !ok {
			diagnose()
			if step.must {
				return
			}
		}
	}
}

// diagnose prints what helps to understand a failure.
func diagnose() {
	for _, args := range [][]string{
		{"get", "pods", "-n", namespace, "-o", "wide"},
		{"get", "events", "-n", namespace, "--field-selector", "type=Warning"},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/name=gpu-collector", "--prefix", "--tail=5"},
	} {
		out, err := command("", "kubectl", args...)
		fmt.Printf("$ kubectl %s\n%s\n", strings.Join(args, " "), cmp.Or(out, fmt.Sprint(err)))
	}
}

// helmArgs of the main release, or of one of agents alone.
func helmArgs(rel string) []string {
	args := []string{
		"-f", "testdata/values.yaml", "--timeout", "4m", "--wait",
		"--set", "agent.image.repository=" + repository(agentImage), "--set", "agent.image.tag=" + tag(agentImage),
		"--set", "image.repository=" + repository(image), "--set", "image.tag=" + tag(image),
	}
	if rel != release {
		args = append(args, "-f", "testdata/values-peer.yaml", "--set", "gatewayEndpoint=dns:///"+shardName+"."+namespace+".svc:4317")
	}
	return args
}

func repository(image string) string { return image[:strings.LastIndex(image, ":")] }

func tag(image string) string { return image[strings.LastIndex(image, ":")+1:] }

// volume of the gateway's history, so that no cluster has to provide one.
const volume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: gpu-collector-e2e}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: gpu-collector-e2e
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %s/history, type: Directory}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %s, operator: Exists}]}]}}
`

func (d *deployment) install(t *testing.T) {
	for _, node := range get(t, "nodes") {
		if node.ready() && len(d.nodes) < 2 {
			d.nodes = append(d.nodes, node.Metadata.Name)
		}
	}
	require.Len(t, d.nodes, 2, "the test needs two nodes that are ready")
	progress("nodes %v", d.nodes)
	for _, node := range d.nodes {
		kubectl(t, "label", "--overwrite", "node", node, nodeLabel+"=true")
	}
	kubectl(t, "label", "--overwrite", "node", d.nodes[1], serversLabel+"=true")
	apply(t, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+namespace+`"}}`)
	apply(t, fmt.Sprintf(nodeFiles, namespace, toolsImage, nodeDir, nodeLabel))
	kubectl(t, "rollout", "status", "-n", namespace, "daemonset/node-files", "--timeout=3m")
	d.remember(t)

	progress("a fake NVML library for each node")
	library, err := os.ReadFile(fakenvml.Library(t))
	require.NoError(t, err)
	for _, node := range d.nodes {
		files := map[string][]byte{"libnvidia-ml.so.1": library}
		for _, rel := range releases() {
			name := agentName(node, rel)
			d.names = append(d.names, name)
			files[stateFile(name)] = []byte(healthy().String())
		}
		write(t, node, files)
	}
	apply(t, fmt.Sprintf(volume, nodeDir, serversLabel))
	onNode(t, d.nodes[1], "", `mkdir -p "$1"; chown 65532:65532 "$1"`, nodeDir+"/history")
	d.certs = newCertificates(t)

	progress("helm install")
	var installs sync.WaitGroup
	errs := make([]error, len(releases()))
	for i, rel := range releases() {
		installs.Go(func() {
			_, errs[i] = command("", "helm", append([]string{"install", rel, chart, "--namespace", namespace}, helmArgs(rel)...)...)
		})
	}
	installs.Wait()
	require.NoError(t, errors.Join(errs...))
	progress("all %d agents in the view after %.1fs", len(d.names), d.view.await(t, d.names...).Seconds())
	progress("helm test")
	helm(t, "test", release, "--timeout", "2m")
	nodes, err := d.view.nodes(t.Context())
	require.NoError(t, err)
	for _, name := range d.names {
		assert.EqualValues(t, gpus, nodes[name].GPUCount.Known, "GPUs of %s", name)
		assert.Equal(t, cluster, nodes[name].Cluster)
	}
}

func (d *deployment) straggler(t *testing.T) {
	slow := d.nodes[0]
	// Six ticks until a node is judged.
	var worst fleetclient.Straggler
	process.Eventually(t, "nodes are compared", func() bool {
		resp, err := d.view.ListStragglersWithResponse(t.Context(), nil)
		return err == nil && resp.JSON200 != nil && resp.JSON200.Total >= int64(len(d.names))
	})
	progress("slowing GPU %d of %s", slowGPU, slow)
	setState(t, slow, slow, slowed())
	took := process.Eventually(t, slow+" is named", func() bool {
		resp, err := d.view.ListStragglersWithResponse(t.Context(), nil)
		if err != nil || resp.JSON200 == nil || len(resp.JSON200.Stragglers) == 0 {
			return false
		}
		worst = resp.JSON200.Stragglers[0]
		return worst.Straggler && worst.Episode != nil
	})
	progress("%s is named after %.1fs: %s", worst.Node, took.Seconds(), text(worst.Episode.Text))
	assert.Equal(t, slow, worst.Node)
	assert.Equal(t, slowReason, text(worst.Episode.Reason))
	assert.Contains(t, text(worst.Episode.GPU), fakenvml.UUID(slowGPU))
	assert.Equal(t, "check_cooling", text(worst.Episode.Action))
	process.Eventually(t, "the node finds it too", func() bool {
		nodes, err := d.view.nodes(t.Context())
		return err == nil && nodes[slow].AgentStraggler != nil && *nodes[slow].AgentStraggler
	})
	nodes, err := d.view.nodes(t.Context())
	require.NoError(t, err)
	for name, node := range nodes {
		assert.Equal(t, name == slow, node.Straggler, "verdict of %s", name)
	}
	setState(t, slow, slow, healthy())
}

func text[T ~string](s *T) T {
	if s == nil {
		return ""
	}
	return *s
}
