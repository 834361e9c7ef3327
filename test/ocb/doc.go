// SPDX-License-Identifier: Apache-2.0

// Package ocb tests what other people's Collectors take over with each
// component of ours: README.md and run.sh build them.
package ocb // import "github.com/gpu-collector/gpu-collector/test/ocb"
