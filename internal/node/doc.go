// SPDX-License-Identifier: Apache-2.0

// Package node decides what one node reports of itself: the signals of its work, its score,
// and what is wrong with its way to the gateway.
// The agent half of the `straggler` processor and the command `check` call it. It must not
// know other nodes, but for what the gateway answers.
// Its packages: nodescore has the signals and the score; check is the command; ownnode is
// which node this is.
package node // import "github.com/gpu-collector/gpu-collector/internal/node"
