// SPDX-License-Identifier: Apache-2.0

// Package ownnode names the node that an agent runs on, the same for all of its components.
package ownnode // import "github.com/gpu-collector/gpu-collector/internal/node/ownnode"

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

const (
	nodeNameEnv   = "K8S_NODE_NAME"
	machineIDPath = "/etc/machine-id"
)

// Resource takes the attributes of the node, as mdatagen's builder does.
type Resource interface {
	SetHostName(name string)
	SetHostID(id string)
	SetK8sNodeName(name string)
	SetK8sClusterName(name string)
}

// Describe writes what is known of the node: its name as configured (nodeName) or by the
// operating system, its machine id, its name in Kubernetes (nodeName, or the environment
// variable K8S_NODE_NAME), and the cluster as configured.
func Describe(to Resource, nodeName, cluster string) {
	if name, _ := os.Hostname(); cmp.Or(nodeName, name) != "" {
		to.SetHostName(cmp.Or(nodeName, name))
	}
	if id, err := os.ReadFile(machineIDPath); err == nil {
		if text := strings.TrimSpace(string(id)); text != "" {
			to.SetHostID(text)
		}
	}
	if name := cmp.Or(nodeName, os.Getenv(nodeNameEnv)); name != "" {
		to.SetK8sNodeName(name)
	}
	if cluster != "" {
		to.SetK8sClusterName(cluster)
	}
}

// Name is that of a node that Describe described, for data that names none.
func Name(nodeName string) string {
	host, _ := os.Hostname()
	return cmp.Or(nodeName, os.Getenv(nodeNameEnv), host)
}

// Namer is the configuration of a component that names the node which it runs on, empty
// where it does not.
type Namer interface{ OwnNode() (cluster, node string) }

// Warning returns a sentence where components, by their node's name, name it differently.
func Warning(components map[string][]string) string {
	delete(components, "")
	if len(components) < 2 {
		return ""
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(components)) {
		names = append(names, fmt.Sprintf("%s is of `%s`", name, strings.Join(components[name], "`, `")))
	}
	return "this node has several names, so that its GPUs and the ranks of its jobs are different nodes: " +
		strings.Join(names, ", ") + "; name it by GPU_COLLECTOR_NODE (`node_name` of each) alone"
}
