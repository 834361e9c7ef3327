// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package stragglerprocessor finds the node that holds the others up. In mode agent
// it scores the nodes whose data passes. Each judges itself by the threshold that
// its gateway returned. In mode gateway it compares the scores of all nodes group by
// group and publishes the thresholds. It only translates; internal/node/nodescore and
// internal/detect/straggler decide.
package stragglerprocessor // import "github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
