// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// uids of the release's pods.
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

// replaced checks that each pod of the release is another one than before.
func (d *deployment) replaced(t *testing.T, before map[string]bool) {
	t.Helper()
	after := d.everyPod(t)
	assert.Len(t, after, len(before))
	for _, pod := range after {
		assert.NotContains(t, before, pod.Metadata.UID, "%s is the pod that it was", pod.Metadata.Name)
	}
}

// runs checks that each pod of the release has the images of the tag, and
// returns the version that the gateway says it is.
func (d *deployment) runs(t *testing.T, tag string) string {
	t.Helper()
	for _, pod := range d.everyPod(t) {
		for _, c := range pod.Spec.Containers {
			assert.True(t, strings.HasSuffix(c.Image, ":"+tag), "%s runs %s", pod.Metadata.Name, c.Image)
		}
	}
	health, err := d.view.GetHealthWithResponse(t.Context())
	require.NoError(t, err)
	require.NotNil(t, health.JSON200)
	return health.JSON200.Version
}

// upgrade rolls every pod: to other images, and how logs are written is part of
// each tier's configuration.
func (d *deployment) upgrade(t *testing.T) {
	before := uids(d.everyPod(t))
	from := d.runs(t, tag(image))
	w := d.view.watch(t, d.names)
	helm(t, append(append([]string{"upgrade", release, chart}, helmArgs(release)...),
		"--set", "logs.encoding=json", "--set", "image.tag="+upgradeTag, "--set", "agent.image.tag="+upgradeTag)...)
	d.view.await(t, d.names...)
	w.end(t, "upgrade")
	d.replaced(t, before)
	to := d.runs(t, upgradeTag)
	say("from %s, version %s, to %s, version %s", tag(image), from, upgradeTag, to)
	assert.Equal(t, tag(image) != upgradeTag, from != to, "the version of an image that is another is another")
	assert.Contains(t, kubectl(t, "get", "configmap", "-n", namespace, gatewayName, "-o", "yaml"), "encoding: json")
}

func (d *deployment) rollback(t *testing.T) {
	before := uids(d.everyPod(t))
	w := d.view.watch(t, d.names)
	helm(t, "rollback", release, "1", "--wait", "--timeout", "4m")
	d.view.await(t, d.names...)
	w.end(t, "rollback")
	d.replaced(t, before)
	d.runs(t, tag(image))
	assert.NotContains(t, kubectl(t, "get", "configmap", "-n", namespace, gatewayName, "-o", "yaml"), "encoding: json")
}

func (d *deployment) scaleShards(t *testing.T) {
	scale := func(n int) {
		t.Helper()
		kubectl(t, "scale", "-n", namespace, "statefulset/"+shardName, fmt.Sprintf("--replicas=%d", n))
		eventually(t, fmt.Sprintf("%d shards are ready", n), func() bool {
			pods := component(t, "shard")
			return len(pods) == n && !slices.ContainsFunc(pods, func(o object) bool { return !o.ready() })
		})
	}
	w := d.view.watch(t, d.names)
	scale(1)
	scale(3)
	// Agents find shards that are new when they ask for the name again, which
	// they do when a connection ends; testdata/values.yaml has those end soon.
	var pushes map[string]float64
	eventually(t, "more than one shard takes pushes", func() bool {
		pushes = map[string]float64{}
		for _, pod := range component(t, "shard") {
			if n := metric(t, pod.Metadata.Name, "otelcol_receiver_accepted_metric_points"); n > 0 {
				pushes[pod.Metadata.Name] = n
			}
		}
		return len(pushes) > 1
	})
	say("points by shard: %v", pushes)
	scale(1)
	// The next push brings again what the stopped shards had not forwarded.
	time.Sleep(2 * pushInterval)
	d.view.await(t, d.names...)
	w.end(t, "shards")
}

// killGateway ends it without a word, and its pod with it.
func (d *deployment) killGateway(t *testing.T) {
	pods := component(t, "gateway")
	require.Len(t, pods, 1)
	health, err := d.view.GetHealthWithResponse(t.Context())
	require.NoError(t, err)
	require.NotNil(t, health.JSON200)
	w := d.view.watch(t, d.names)
	kubectl(t, "delete", "pod", "-n", namespace, pods[0].Metadata.Name, "--grace-period=0", "--force")
	began := time.Now()
	eventually(t, "another gateway answers", func() bool {
		again, err := d.view.GetHealthWithResponse(t.Context())
		return err == nil && again.JSON200 != nil && again.JSON200.Started.After(health.JSON200.Started)
	})
	away := time.Since(began)
	healed := d.view.await(t, d.names...)
	say("gateway was away for %.1fs, and had all nodes %.1fs after that", away.Seconds(), healed.Seconds())
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
	say("cutting off %s", cut)
	hook("down")
	connected := false
	t.Cleanup(func() {
		if !connected {
			hook("up")
		}
	})
	var away, there []string
	for _, name := range d.names {
		if name == cut || len(name) > len(cut) && name[:len(cut)+1] == cut+"-" {
			away = append(away, name)
		} else {
			there = append(there, name)
		}
	}
	gone := eventually(t, fmt.Sprintf("%v are missing", away), func() bool {
		nodes, err := d.view.nodes(t.Context())
		return err == nil && !slices.ContainsFunc(away, func(name string) bool { return state(nodes[name]) != "missing" })
	})
	say("%v are missing after %.1fs", away, gone.Seconds())
	d.view.await(t, there...)
	hook("up")
	connected = true
	back := d.view.await(t, d.names...)
	say("all are back after %.1fs", back.Seconds())
	assert.Equal(t, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(uids(component(t, "agent")))), "a short cut costs no pod")
}
