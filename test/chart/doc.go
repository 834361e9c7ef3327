// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart with helm, kubeconform, promtool and the
// real binaries. `make test-chart` finds or builds them. What each value does is
// tested beside the chart, in helm/gpu-collector/tests.
package chart // import "github.com/gpu-collector/gpu-collector/test/chart"
