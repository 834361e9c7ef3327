// SPDX-License-Identifier: Apache-2.0

// Package e2e installs the product by its Helm chart in a real cluster and
// does to it what happens to clusters: upgrades, more and fewer shards, pods
// that die, nodes that are cut off, secrets that are rotated. `make e2e` runs
// it against the cluster of KUBECONFIG; README.md says what it needs.
package e2e // import "github.com/gpu-collector/gpu-collector/test/e2e"
