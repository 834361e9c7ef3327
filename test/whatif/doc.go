// SPDX-License-Identifier: Apache-2.0

// Package whatif judges what the product says of a job's cost, by the what-if analysis of
// "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al.,
// OSDI '25). S = T / T_ideal is the job's slowdown, and S_w the slowdown with all but
// worker w ideal. From recorded operations a step is replayed with its dependencies; from
// step times it is estimated.
package whatif // import "github.com/gpu-collector/gpu-collector/test/whatif"
