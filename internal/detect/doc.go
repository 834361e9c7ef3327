// SPDX-License-Identifier: Apache-2.0

// Package detect decides which nodes are slow: it compares nodes, ranks and links with their peers,
// and computes the threshold that is published.
// The gateway half of the `straggler` processor and the evaluation call it. It must not know
// why a node is slow, which client reads that, or pdata.
// Its packages: straggler compares nodes; collective compares ranks and links; peergroup names
// the peers of a node; robust has medians and MADs; threshold carries the result;
// unjudged is why there is none.
package detect // import "github.com/gpu-collector/gpu-collector/internal/detect"
