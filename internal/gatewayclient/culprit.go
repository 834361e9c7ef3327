// SPDX-License-Identifier: Apache-2.0

package gatewayclient

import (
	"fmt"
	"strings"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Culprit says the part of a node that holds it down, such as rank 11 (local rank 3, GPU 3, GPU-5a...).
func Culprit(c *fleetclient.Culprit) string {
	var parts []string
	if c.LocalRank != nil {
		parts = append(parts, fmt.Sprintf("local rank %d", *c.LocalRank))
	}
	if c.Index != nil {
		parts = append(parts, fmt.Sprintf("GPU %d", *c.Index))
	}
	if c.GPU != nil {
		parts = append(parts, *c.GPU)
	}
	name := strings.Join(parts, ", ")
	switch {
	case c.Rank == nil:
		return name
	case name == "":
		return fmt.Sprintf("rank %d", *c.Rank)
	}
	return fmt.Sprintf("rank %d (%s)", *c.Rank, name)
}
