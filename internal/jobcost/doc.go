// SPDX-License-Identifier: Apache-2.0

// Package jobcost says what slow workers cost a synchronous training job: its slowdown
// and the GPU-hours lost. test/whatif judges it by a replay of recorded jobs. Pure.
package jobcost // import "github.com/gpu-collector/gpu-collector/internal/jobcost"
