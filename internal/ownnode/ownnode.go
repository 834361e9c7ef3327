// SPDX-License-Identifier: Apache-2.0

// Package ownnode says which node a receiver runs on, so that all receivers of an agent
// name it alike.
package ownnode // import "github.com/gpu-collector/gpu-collector/internal/ownnode"

import (
	"cmp"
	"os"
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

// Describe writes what is known of the node: its name by the operating system, its machine
// id, its name in Kubernetes (nodeName, or the environment variable K8S_NODE_NAME), and
// the cluster as configured.
func Describe(to Resource, nodeName, cluster string) {
	if name, err := os.Hostname(); err == nil && name != "" {
		to.SetHostName(name)
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
