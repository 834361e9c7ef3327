// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	actorSpace   = namespace + "-actor"
	actorName    = release + "-gpu-collector-actions"
	actorLabel   = "gpu-collector.test/actor"
	actorDir     = "/var/lib/gpu-collector-e2e-actor"
	actorAccount = "system:serviceaccount:" + actorSpace + ":" + actorName
	taintKey     = "actions.gpu-collector.io/suspect"
)

// actor is the actor in a real cluster: its gateway, its node, and a fleet of simulated peers.
type actor struct {
	t     *testing.T
	slow  string // the node that is slow
	other string // the node of gateway and actor
	watch *nodeWatch
	fleet *exec.Cmd
	log   string
}

// TestActor has a slow node kept off, tested and given back, and then kills the actor.
func TestActor(t *testing.T) {
	if actionsImage == "" {
		t.Skip("E2E_ACTIONS_IMAGE is not set; see README.md")
	}
	a := &actor{t: t}
	t.Cleanup(a.cleanUp)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Install", a.install},
		{"PolicyHoldsTheActor", a.policy},
		{"ConditionsAreShown", a.conditions},
		{"SlowNodeIsKeptOff", a.keptOff},
		{"BurnInGivesItBack", a.givenBack},
		{"TenKills", a.kills},
	} {
		began := time.Now()
		say("=== actor: %s", step.name)
		ok := t.Run(step.name, func(t *testing.T) {
			a.t = t
			step.run(t)
		})
		say("=== actor: %s: %s after %.1fs", step.name, map[bool]string{true: "ok", false: "FAILED"}[ok], time.Since(began).Seconds())
		if !ok {
			a.diagnose()
			return
		}
	}
}

func (a *actor) helm(args ...string) {
	a.t.Helper()
	args = append(args, release, chart, "--namespace", actorSpace, "-f", "testdata/values-actor.yaml", "--timeout", "3m", "--wait",
		"--set", "image.repository="+repository(image)+",image.tag="+tag(image),
		"--set", "actions.image.repository="+repository(actionsImage)+",actions.image.tag="+tag(actionsImage),
		"--set", "actions.burnIn.job.spec.template.spec.containers[0].image="+toolsImage,
		"--set", "gateway.extraEnv[0].name=SLOW_NODE,gateway.extraEnv[0].value="+a.slow)
	if clusterImage != "" {
		args = append(args, "--set", "cluster.image.repository="+repository(clusterImage)+",cluster.image.tag="+tag(clusterImage))
	}
	_, err := command("", "helm", args...)
	require.NoError(a.t, err)
}

// tools is a pod that makes the actor's directory, and kills its process: the actor's image
// has nothing but the actor.
const tools = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: gpu-collector-e2e-actor}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: gpu-collector-e2e-actor
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %[1]s/state, type: Directory}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: %[2]s, operator: Exists}]}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: tools, namespace: %[3]s}
spec:
  hostPID: true
  terminationGracePeriodSeconds: 0
  nodeSelector: {%[2]s: servers}
  containers:
    - name: tools
      image: %[4]s
      command: [sh, -c, 'mkdir -p /node/state; rm -rf /node/state/*; chown 65532:65532 /node/state; touch /ready; exec sleep 3600']
      readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}
      securityContext: {privileged: true}
      volumeMounts: [{name: node, mountPath: /node}]
  volumes: [{name: node, hostPath: {path: %[1]s, type: DirectoryOrCreate}}]
`

// work are two Jobs on the node that will be slow; a budget holds the pod of one.
const work = `
apiVersion: batch/v1
kind: Job
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  backoffLimit: 100
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[3]s]}]}}]}}
      containers: [{name: train, image: %[4]s, command: [sleep, "3600"]}]
`

const budget = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: held, namespace: %s}
spec: {minAvailable: 1, selector: {matchLabels: {app: held}}}
`

func (a *actor) install(t *testing.T) {
	var nodes []string
	for _, node := range get(t, "nodes") {
		if node.ready() && len(nodes) < 2 {
			nodes = append(nodes, node.Metadata.Name)
		}
	}
	require.Len(t, nodes, 2, "the test needs two nodes that are ready")
	a.slow, a.other = nodes[0], nodes[1]
	kubectl(t, "label", "--overwrite", "node", a.other, actorLabel+"=servers")
	apply(t, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+actorSpace+`"}}`)
	apply(t, fmt.Sprintf(tools, actorDir, actorLabel, actorSpace, toolsImage))
	a.verdict("too slow")
	kubectl(t, "wait", "-n", actorSpace, "--for=condition=Ready", "pod/tools", "--timeout=2m")
	a.helm("install")
	a.watch = watchNode(t, a.slow)
}

// verdict is what the next burn-in ends with.
func (a *actor) verdict(result string) {
	a.t.Helper()
	apply(a.t, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "verdict", "namespace": "`+actorSpace+`"}, "data": {"result": "`+result+`"}}`)
}

// policy has the actor's own account try what its rights allow and its task does not.
func (a *actor) policy(t *testing.T) {
	try := func(args ...string) error {
		_, err := command("", "kubectl", append(args, "--as", actorAccount)...)
		return err
	}
	eventually(t, time.Minute, "the policy is in force", func() bool {
		err := try("label", "node", a.slow, "gpu-collector.test/foreign=x", "--overwrite")
		return err != nil && strings.Contains(err.Error(), "the actor may change no label")
	})
	kubectl(t, "label", "node", a.slow, "gpu-collector.test/foreign-")
	for want, args := range map[string][]string{
		"the actor may change no annotation": {"annotate", "node", a.slow, "actions.gpu-collector.io/release=kim: let it go"},
		"the actor may change no taint":      {"patch", "node", a.slow, "--type=merge", "-p", `{"spec": {"taints": [{"key": "foreign", "effect": "NoSchedule"}]}}`},
		"which is NoSchedule":                {"patch", "node", a.slow, "--type=merge", "-p", `{"spec": {"taints": [{"key": "` + taintKey + `", "effect": "NoExecute"}]}}`},
		"cannot delete resource \"pods\"":    {"delete", "pod", "-n", actorSpace, "tools"},
		"cannot list resource \"secrets\"":   {"get", "secrets", "-n", actorSpace},
		"cannot delete resource \"nodes\"":   {"delete", "node", a.slow},
	} {
		err := try(args...)
		if assert.Error(t, err, args) {
			assert.Contains(t, err.Error(), want)
		}
	}
	// kubectl reads a status before it patches it, which the actor may not.
	addr, _ := launch(t, proxyLine, "proxy", "--port", "0")
	for want, patch := range map[string]string{
		"the actor may change no condition": `{"status": {"conditions": [{"type": "Foreign", "status": "True"}]}}`,
		"the actor may change nothing else": `{"status": {"capacity": {"foreign": "1"}}}`,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, "http://"+addr+"/api/v1/nodes/"+a.slow+"/status", strings.NewReader(patch))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
		request.Header.Set("Impersonate-User", actorAccount)
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, http.StatusUnprocessableEntity, answer.StatusCode)
		assert.Contains(t, string(text), want)
	}
}

// push has fleetsim push the simulated nodes; node 3 is the real one.
func (a *actor) push(args ...string) {
	a.t.Helper()
	a.stopFleet()
	addr, _ := launch(a.t, forwardLine, "port-forward", "-n", actorSpace, "--address", "127.0.0.1", "service/"+gatewayName, ":4317")
	a.fleet = exec.Command(root+"/bin/fleetsim", append([]string{"-endpoint", addr, "-cluster", "e2e-actor", "-nodes", "12", "-interval", "1s"}, args...)...)
	require.NoError(a.t, a.fleet.Start())
}

func (a *actor) stopFleet() {
	if a.fleet != nil {
		_ = a.fleet.Process.Kill() // it may have ended
		_ = a.fleet.Wait()         // killed
		a.fleet = nil
	}
}

// conditions has the fleet view show what Kubernetes says of the real node.
func (a *actor) conditions(t *testing.T) {
	a.push()
	a.shows(map[string]string{"Ready": "true", "DiskPressure": "false"})
	patch := func(condition string) {
		kubectl(t, "patch", "node", a.slow, "--subresource=status", "-p", `{"status": {"conditions": [`+condition+`]}}`)
	}
	t.Cleanup(func() { patch(`{"type": "E2eFanBroken", "$patch": "delete"}`) })
	for _, status := range []string{"True", "Unknown", "False"} {
		patch(`{"type": "E2eFanBroken", "status": "` + status + `"}`)
		a.shows(map[string]string{"Ready": "true", "E2eFanBroken": strings.ToLower(status)})
	}
	nodes, err := a.view().nodes(t.Context())
	require.NoError(t, err)
	assert.Len(t, nodes, 12, "a condition makes no node")
	assert.Nil(t, nodes["node-000001"].Conditions, "what Kubernetes does not know has none")
}

// shows waits until the API has the real node's conditions so.
func (a *actor) shows(want map[string]string) {
	a.t.Helper()
	view := a.view()
	took := eventually(a.t, 2*time.Minute, fmt.Sprintf("the view shows %v", want), func() bool {
		nodes, err := view.nodes(a.t.Context())
		if err != nil || nodes[a.slow].Conditions == nil {
			return false
		}
		got := map[string]string{}
		for _, c := range *nodes[a.slow].Conditions {
			got[c.Type] = string(c.Status)
		}
		for name, status := range want {
			if got[name] != status {
				return false
			}
		}
		return true
	})
	say("the view shows %v after %.1fs", want, took.Seconds())
}

const slowFault = "thermal_throttle:3:2@15s=0.8"

func (a *actor) keptOff(t *testing.T) {
	for _, job := range []string{"free", "held"} {
		apply(t, fmt.Sprintf(work, job, actorSpace, a.slow, toolsImage))
	}
	apply(t, fmt.Sprintf(budget, actorSpace))
	eventually(t, time.Minute, "both Jobs run on "+a.slow, func() bool { return len(a.running("free", a.slow)) == 1 && len(a.running("held", a.slow)) == 1 })
	a.push("-fault", slowFault)
	a.awaits("the node is tainted", 2*time.Minute, func(s nodeState) bool { return s.taint != "" && s.unschedulable })
	condition, taint := a.watch.first(func(s nodeState) bool { return s.condition == "True" }), a.watch.first(func(s nodeState) bool { return s.taint != "" })
	events := a.events()
	require.NotEmpty(t, events)
	say("event %d, condition %d, taint %d by resource version", events[0], condition, taint)
	assert.Less(t, events[0], condition, "the event is before the condition")
	assert.Less(t, condition, taint, "the condition is before the taint")
	a.shows(map[string]string{"Ready": "true", "GpuStraggler": "true"})

	eventually(t, time.Minute, "the free Job has left", func() bool { return len(a.running("free", a.slow)) == 0 && len(a.running("free", a.other)) == 1 })
	eventually(t, time.Minute, "the budget was heard", func() bool {
		return strings.Contains(a.logs(), "disruption budget") || strings.Contains(a.logs(), "disruption_budget")
	})
	assert.Len(t, a.running("held", a.slow), 1, "the budget holds it")
	assert.Empty(t, a.burnIns(), "no test beside a job")
	kubectl(t, "delete", "-n", actorSpace, "pdb", "held")
	eventually(t, time.Minute, "the other Job has left too", func() bool { return len(a.running("held", a.slow)) == 0 && len(a.running("held", a.other)) == 1 })
}

func (a *actor) givenBack(t *testing.T) {
	eventually(t, time.Minute, "the burn-in has failed", func() bool { return a.burnIns()["Failed"] == 1 })
	eventually(t, time.Minute, "the actor knows it", func() bool { return strings.Contains(a.logs(), "test_failed") })
	assert.NotEmpty(t, a.watch.last().taint, "a failed test gives nothing back")
	a.push() // the fan is new
	view := a.view()
	eventually(t, 2*time.Minute, "the peers find nothing", func() bool {
		nodes, err := view.nodes(t.Context())
		return err == nil && !nodes[a.slow].Straggler && nodes[a.slow].Episode == nil
	})
	a.verdict("pass")
	kubectl(t, "annotate", "node", a.slow, "actions.gpu-collector.io/repaired=kim: new fan")
	a.awaits("the node is given back", time.Minute, func(s nodeState) bool {
		return s.taint == "" && !s.unschedulable && s.label == "" && s.condition == "False"
	})
	a.shows(map[string]string{"Ready": "true", "GpuStraggler": "false"})
	assert.Equal(t, map[string]int{"Failed": 1, "Complete": 1}, a.burnIns())
	eventually(t, 90*time.Second, "the probation ends", func() bool { return strings.Contains(a.logs(), "proven") })
	kubectl(t, "annotate", "node", a.slow, "actions.gpu-collector.io/repaired-")
}

// kills kills the actor while the node is slow again. A budget and a test that waits for its
// verdict keep something to do until the last kill.
func (a *actor) kills(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	say("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kubectl(t, "delete", "configmap", "-n", actorSpace, "verdict") // a test waits for it
	// Without a Lease, which a killed holder would keep for 15 s.
	a.helm("upgrade", "--set", "actions.config.exporters.verdict_actions.kubernetes.lease=")
	a.move("free")
	a.move("held")
	apply(t, fmt.Sprintf(budget, actorSpace))
	begun := func() int {
		return len(get(t, "jobs", "-n", actorSpace, "-l", "actions.gpu-collector.io/burn-in"))
	}
	before, tests, all := len(a.events()), a.burnIns()["Failed"], begun()
	from := a.watch.count()
	a.push("-fault", slowFault)
	eventually(t, 2*time.Minute, "the actor begins", func() bool { return len(a.events()) > before })
	kills := 0
	kill := func(times int) {
		for range times {
			time.Sleep(time.Duration(random.Int64N(int64(1500 * time.Millisecond)))) // the moment is drawn
			a.kill()
			kills++
			say("kill %d: %s; %d events, %d tests", kills, a.watch.last(), len(a.events())-before, begun()-all)
		}
	}
	kill(3)
	require.Len(t, a.running("held", a.slow), 1, "the budget holds it over the kills")
	require.Equal(t, all, begun(), "no test beside a job")
	kubectl(t, "delete", "-n", actorSpace, "pdb", "held")
	kill(3)
	// The eviction and the start of the test come after the third kill and before the seventh.
	eventually(t, 2*time.Minute, "the other Job has left too", func() bool { return len(a.running("held", a.slow)) == 0 })
	eventually(t, time.Minute, "the burn-in has begun", func() bool { return begun() == all+1 })
	kill(2)
	require.Equal(t, tests, a.burnIns()["Failed"], "it waits for its verdict")
	a.verdict("too slow")
	kill(2)
	require.Equal(t, 10, kills)
	eventually(t, 3*time.Minute, "the burn-in has failed", func() bool { return a.burnIns()["Failed"] == tests+1 })
	a.awaits("all marks are there", time.Minute, func(s nodeState) bool {
		return s.taint != "" && s.unschedulable && s.label == "suspect" && s.condition == "True"
	})
	eventually(t, time.Minute, "the actor knows it", func() bool { return strings.Contains(a.logs(), "test_failed") })
	changes := a.watch.changes(from)
	say("changes %v", changes)
	assert.Equal(t, map[string]int{"condition": 1, "label": 1, "taint": 1, "cordon": 1}, changes, "each once")
	assert.Equal(t, map[string]int{"Failed": tests + 1, "Complete": 1}, a.burnIns(), "one test")
	assert.Empty(t, a.running("free", a.slow))
	// suspect, confirmed, kept_off, and the test that failed
	eventually(t, time.Minute, "all is told", func() bool { return len(a.eventNames()) >= before+4 })
	names := a.eventNames()
	assert.Len(t, slices.Compact(slices.Clone(names)), len(names), "no event twice")
	assert.Len(t, names, before+4)
}

// move has a Job's pod run on the slow node again.
func (a *actor) move(job string) {
	a.t.Helper()
	kubectl(a.t, "delete", "pod", "-n", actorSpace, "-l", "app="+job, "--force", "--grace-period=0")
	eventually(a.t, time.Minute, job+" runs on "+a.slow, func() bool { return len(a.running(job, a.slow)) == 1 })
}

// kill is kill -9 of the actor's process. The pod goes too, as the kubelet would wait
// longer each time before it starts the container again.
func (a *actor) kill() {
	a.t.Helper()
	var pod struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				ContainerStatuses []struct {
					ContainerID string
					State       struct{ Running *struct{} }
				}
			}
		}
	}
	eventually(a.t, time.Minute, "the actor runs", func() bool {
		require.NoError(a.t, json.Unmarshal([]byte(kubectl(a.t, "get", "pods", "-n", actorSpace, "-l", "app.kubernetes.io/component=actions", "-o", "json")), &pod))
		return len(pod.Items) == 1 && len(pod.Items[0].Status.ContainerStatuses) == 1 && pod.Items[0].Status.ContainerStatuses[0].State.Running != nil
	})
	_, id, _ := strings.Cut(pod.Items[0].Status.ContainerStatuses[0].ContainerID, "://")
	name := pod.Items[0].Metadata.Name
	out := kubectl(a.t, "exec", "-n", actorSpace, "tools", "--", "sh", "-c",
		`n=0; for p in /proc/[0-9]*; do if grep -q "$1" $p/cgroup 2>/dev/null; then kill -9 ${p#/proc/} && n=$((n+1)); fi; done; echo $n`, "sh", id)
	require.NotEqual(a.t, "0", out, "no process of the container %s", id)
	// All that it said until it was killed: of the container before, where there is a new one already.
	said, err := command("", "kubectl", "logs", "-n", actorSpace, name, "--tail=-1", "--previous")
	if err != nil {
		said, _ = command("", "kubectl", "logs", "-n", actorSpace, name, "--tail=-1")
	}
	a.log += said
	kubectl(a.t, "delete", "pod", "-n", actorSpace, name, "--force", "--grace-period=0")
}

// running lists the pods of a Job that run on a node.
func (a *actor) running(job, node string) (list []object) {
	a.t.Helper()
	for _, p := range get(a.t, "pods", "-n", actorSpace, "-l", "app="+job) {
		if p.Spec.NodeName == node && p.Status.Phase == "Running" && p.Metadata.DeletionTimestamp == nil {
			list = append(list, p)
		}
	}
	return list
}

// burnIns counts the tests that have ended, by how.
func (a *actor) burnIns() map[string]int {
	a.t.Helper()
	n := map[string]int{}
	for _, job := range get(a.t, "jobs", "-n", actorSpace, "-l", "actions.gpu-collector.io/burn-in") {
		for _, c := range job.Status.Conditions {
			if (c.Type == "Failed" || c.Type == "Complete") && c.Status == "True" {
				n[c.Type]++
			}
		}
	}
	return n
}

type event struct {
	Metadata struct {
		Name            string
		ResourceVersion string `json:"resourceVersion"`
	}
	ReportingController string `json:"reportingController"`
	Regarding           struct{ Name string }
}

func (a *actor) ours() (list []event) {
	a.t.Helper()
	var all struct{ Items []event }
	require.NoError(a.t, json.Unmarshal([]byte(kubectl(a.t, "get", "events.v1.events.k8s.io", "-n", "default", "-o", "json")), &all))
	for _, e := range all.Items {
		version, err := strconv.Atoi(e.Metadata.ResourceVersion)
		require.NoError(a.t, err)
		if e.ReportingController == "actions.gpu-collector.io" && e.Regarding.Name == a.slow && version > a.watch.states[0].version {
			list = append(list, e)
		}
	}
	return list
}

// events are the resource versions of the actor's events, sorted: a store has one order.
func (a *actor) events() (list []int) {
	a.t.Helper()
	for _, e := range a.ours() {
		v, err := strconv.Atoi(e.Metadata.ResourceVersion)
		require.NoError(a.t, err)
		list = append(list, v)
	}
	slices.Sort(list)
	return list
}

func (a *actor) eventNames() (list []string) {
	a.t.Helper()
	for _, e := range a.ours() {
		list = append(list, e.Metadata.Name)
	}
	slices.Sort(list)
	return list
}

// logs are the actor's, over its kills.
func (a *actor) logs() string { return a.log + a.current() }

func (a *actor) current() string {
	out, _ := command("", "kubectl", "logs", "-n", actorSpace, "-l", "app.kubernetes.io/component=actions", "--tail=-1") // there may be no pod
	return out
}

func (a *actor) view() view {
	a.t.Helper()
	return viewOf(a.t, actorSpace, "http")
}

func (a *actor) awaits(what string, deadline time.Duration, condition func(nodeState) bool) {
	a.t.Helper()
	say("%s after %.1fs", what, eventually(a.t, deadline, what, func() bool { return condition(a.watch.last()) }).Seconds())
}

func (a *actor) diagnose() {
	fmt.Println(a.logs())
	for _, args := range [][]string{
		{"get", "pods,jobs", "-n", actorSpace, "-o", "wide"},
		{"get", "events", "-n", actorSpace, "--field-selector", "type=Warning"},
		{"logs", "-n", actorSpace, "-l", "app.kubernetes.io/component=gateway", "--tail=20"},
		{"describe", "node", a.slow},
	} {
		out, _ := command("", "kubectl", args...) // to print what there is
		fmt.Println("$ kubectl", strings.Join(args, " "))
		fmt.Println(out)
	}
}

// cleanUp takes away what the test made, whatever went wrong. An absent object is no mistake.
func (a *actor) cleanUp() {
	a.stopFleet()
	if a.watch != nil {
		a.watch.stop()
	}
	_, _ = command("", "helm", "uninstall", release, "-n", actorSpace, "--ignore-not-found", "--wait")
	_, _ = command("", "kubectl", "exec", "-n", actorSpace, "tools", "--", "sh", "-c", "rm -rf /node/*")
	for _, node := range []string{a.slow, a.other} {
		if node == "" {
			continue
		}
		_, _ = command("", "kubectl", "label", "node", node, actorLabel+"-", "actions.gpu-collector.io/state-")
		_, _ = command("", "kubectl", "taint", "node", node, taintKey+"-")
		_, _ = command("", "kubectl", "uncordon", node)
		_, _ = command("", "kubectl", "patch", "node", node, "--subresource=status", "-p", `{"status": {"conditions": [{"type": "GpuStraggler", "$patch": "delete"}]}}`)
		_, _ = command("", "kubectl", "annotate", "node", node, "actions.gpu-collector.io/marks-", "actions.gpu-collector.io/case-", "actions.gpu-collector.io/repaired-")
	}
	_, _ = command("", "kubectl", "delete", "events", "-n", "default", "--field-selector", "reportingComponent=actions.gpu-collector.io")
	_, _ = command("", "kubectl", "delete", "--ignore-not-found", "persistentvolume", "gpu-collector-e2e-actor", "--wait=false")
	_, _ = command("", "kubectl", "delete", "--ignore-not-found", "namespace", actorSpace, "--timeout=3m")
}

// nodeState is what the actor's marks of a node read.
type nodeState struct {
	version                 int
	condition, label, taint string
	unschedulable           bool
}

func (s nodeState) String() string {
	return fmt.Sprintf("condition %q, label %q, taint %q, cordoned %v", s.condition, s.label, s.taint, s.unschedulable)
}

// nodeWatch is each version of a node since it began.
type nodeWatch struct {
	mu     sync.Mutex
	states []nodeState
	cmd    *exec.Cmd
}

func watchNode(t *testing.T, name string) *nodeWatch {
	t.Helper()
	w := &nodeWatch{cmd: exec.Command("kubectl", "get", "node", name, "-w", "-o", "json")}
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.cmd.Start())
	go w.read(out)
	eventually(t, time.Minute, "the node is watched", func() bool { return w.count() > 0 })
	return w
}

func (w *nodeWatch) read(from io.Reader) {
	for d := json.NewDecoder(from); ; {
		var n struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Labels          map[string]string
			}
			Spec struct {
				Unschedulable bool
				Taints        []struct{ Key, Value, Effect string }
			}
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
		if d.Decode(&n) != nil { // it was stopped
			return
		}
		s := nodeState{label: n.Metadata.Labels["actions.gpu-collector.io/state"], unschedulable: n.Spec.Unschedulable}
		s.version, _ = strconv.Atoi(n.Metadata.ResourceVersion)
		for _, t := range n.Spec.Taints {
			if t.Key == taintKey {
				s.taint = t.Value + ":" + t.Effect
			}
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "GpuStraggler" {
				s.condition = c.Status
			}
		}
		w.mu.Lock()
		w.states = append(w.states, s)
		w.mu.Unlock()
	}
}

func (w *nodeWatch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.states)
}

func (w *nodeWatch) last() nodeState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.states[len(w.states)-1]
}

// first is the resource version of the first state that is so.
func (w *nodeWatch) first(is func(nodeState) bool) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.IndexFunc(w.states, is); i >= 0 {
		return w.states[i].version
	}
	return 0
}

// changes counts how often each mark changed since a state.
func (w *nodeWatch) changes(from int) map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for i := from; i < len(w.states); i++ {
		a, b := w.states[i-1], w.states[i]
		for mark, changed := range map[string]bool{
			"condition": a.condition != b.condition, "label": a.label != b.label, "taint": a.taint != b.taint, "cordon": a.unschedulable != b.unschedulable,
		} {
			if changed {
				n[mark]++
			}
		}
	}
	return n
}

func (w *nodeWatch) stop() {
	_ = w.cmd.Process.Kill() // it may have ended
	_ = w.cmd.Wait()         // killed
}
