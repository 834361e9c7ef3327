// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/process"
)

func uids(pods ...[]object) map[string]bool {
	found := map[string]bool{}
	for _, pod := range slices.Concat(pods...) {
		found[pod.Metadata.UID] = true
	}
	return found
}

func (d *deployment) everyPod(t *testing.T) []object {
	t.Helper()
	return slices.Concat(component(t, "agent"), component(t, "shard"), component(t, "gateway"))
}

func noRestarts(t *testing.T, pods []object) {
	t.Helper()
	for _, pod := range pods {
		for _, c := range pod.Status.ContainerStatuses {
			assert.Zero(t, c.RestartCount, "restarts of %s", pod.Metadata.Name)
		}
	}
}

// replace has helm replace each pod by another with images of a tag, and returns the
// gateway's version. Each tier's configuration changes too: how logs are written.
func (d *deployment) replace(t *testing.T, what, tag string, json bool, args ...string) string {
	t.Helper()
	before := uids(d.everyPod(t))
	w := d.view.watch(t, d.names)
	helm(t, args...)
	d.view.await(t, d.names...)
	w.end(t, what)
	after := d.everyPod(t)
	assert.Len(t, after, len(before))
	for _, pod := range after {
		assert.NotContains(t, before, pod.Metadata.UID, "%s is the pod that it was", pod.Metadata.Name)
		for _, c := range pod.Spec.Containers {
			assert.True(t, strings.HasSuffix(c.Image, ":"+tag), "%s runs %s", pod.Metadata.Name, c.Image)
		}
	}
	config := kubectl(t, "get", "configmap", "-n", namespace, gatewayName, "-o", "yaml")
	assert.Equal(t, json, strings.Contains(config, "encoding: json"))
	return d.view.health(t).Version
}

func (d *deployment) upgrade(t *testing.T) {
	from := d.view.health(t).Version
	to := d.replace(t, "upgrade", upgradeTag, true, append(append([]string{"upgrade", release, chart}, helmArgs(release)...),
		"--set", "logs.encoding=json", "--set", "image.tag="+upgradeTag, "--set", "agent.image.tag="+upgradeTag)...)
	progress("from %s, version %s, to %s, version %s", tag(image), from, upgradeTag, to)
	assert.Equal(t, tag(image) != upgradeTag, from != to, "the version of an image that is another is another")
}

func (d *deployment) rollback(t *testing.T) {
	d.replace(t, "rollback", tag(image), false, "rollback", release, "1", "--wait", "--timeout", "4m")
}

func (d *deployment) scaleShards(t *testing.T) {
	scale := func(n int) {
		t.Helper()
		kubectl(t, "scale", "-n", namespace, "statefulset/"+shardName, fmt.Sprintf("--replicas=%d", n))
		process.Eventually(t, fmt.Sprintf("%d shards are ready", n), func() bool {
			pods := component(t, "shard")
			return len(pods) == n && !slices.ContainsFunc(pods, func(o object) bool { return !o.ready() })
		})
	}
	w := d.view.watch(t, d.names)
	scale(1)
	scale(3)
	// Agents find shards that are new when they ask for the name again, which
	// they do when a connection ends; testdata/values.yaml has those end soon.
	process.Eventually(t, "more than one shard takes pushes", func() bool {
		return len(slices.DeleteFunc(component(t, "shard"), func(o object) bool { return metric(t, o.Metadata.Name, "otelcol_receiver_accepted_metric_points") == 0 })) > 1
	})
	scale(1)
	// The next push brings again what the stopped shards had not forwarded.
	d.view.pushed(t, pushInterval, d.names)
	w.end(t, "shards")
}

// killGateway deletes its pod without a grace period.
func (d *deployment) killGateway(t *testing.T) {
	pods := component(t, "gateway")
	require.Len(t, pods, 1)
	health := d.view.health(t)
	w := d.view.watch(t, d.names)
	kubectl(t, "delete", "pod", "-n", namespace, pods[0].Metadata.Name, "--grace-period=0", "--force")
	away := process.Eventually(t, "another gateway answers", func() bool {
		again, err := d.view.GetHealthWithResponse(t.Context())
		return err == nil && again.JSON200 != nil && again.JSON200.Started.After(health.Started)
	})
	healed := d.view.await(t, d.names...)
	progress("gateway was away for %.1fs, and had all nodes %.1fs after that", away.Seconds(), healed.Seconds())
	figure.Print("e2e_gateway_killed_view_whole", healed.Seconds(), "s", pushInterval.Seconds(), true)
	w.end(t, "gateway_killed")

	// The past is on the volume.
	slow := d.nodes[:1]
	episodes, err := d.view.ListEpisodesWithResponse(t.Context(), &fleetclient.ListEpisodesParams{Node: &slow})
	require.NoError(t, err)
	require.NotNil(t, episodes.JSON200)
	assert.True(t, slices.ContainsFunc(episodes.JSON200.Episodes, func(e fleetclient.Episode) bool {
		return text(e.Reason) == slowReason
	}), "the episode of %s outlives the gateway", d.nodes[0])
}

func (d *deployment) cutOff(t *testing.T) {
	if partition == "" {
		t.Skip("E2E_PARTITION is not set: nothing here can cut off a node; see README.md")
	}
	gateway := component(t, "gateway")
	require.Len(t, gateway, 1)
	cut := d.nodes[0]
	if cut == gateway[0].Spec.NodeName {
		cut = d.nodes[1]
	}
	before := uids(component(t, "agent"))
	hook := func(what string) {
		out, err := command("", "sh", "-c", partition+` "$@"`, "sh", what, cut)
		require.NoError(t, err, out)
	}
	progress("cutting off %s", cut)
	hook("down")
	reconnect := sync.OnceFunc(func() { hook("up") })
	t.Cleanup(reconnect)
	of := func(name string) bool { return name == cut || strings.HasPrefix(name, cut+"-") }
	there := slices.DeleteFunc(slices.Clone(d.names), of)
	away := slices.DeleteFunc(slices.Clone(d.names), func(name string) bool { return !of(name) })
	gone := process.Eventually(t, fmt.Sprintf("%v are missing", away), func() bool {
		nodes, err := d.view.nodes(t.Context())
		return err == nil && !slices.ContainsFunc(away, func(name string) bool { return text(nodes[name].State) != "missing" })
	})
	progress("%v are missing after %.1fs", away, gone.Seconds())
	d.view.await(t, there...)
	reconnect()
	back := d.view.await(t, d.names...)
	progress("all are back after %.1fs", back.Seconds())
	assert.Equal(t, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(uids(component(t, "agent")))), "a short cut costs no pod")
}
