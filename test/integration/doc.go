// SPDX-License-Identifier: Apache-2.0

// Package integration runs the real binaries: as processes, over real ports,
// with the configurations that are shipped.
package integration // import "github.com/gpu-collector/gpu-collector/test/integration"
