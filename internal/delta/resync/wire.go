// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"errors"
	"fmt"

	"github.com/dunglas/httpsfv"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// MaxEpochLength bounds the text of an epoch.
const MaxEpochLength = 64

// ValidEpoch reports whether s can be an epoch: 1 to MaxEpochLength printable
// ASCII characters without meaning.
func ValidEpoch(s string) bool { return len(s) <= MaxEpochLength && wire.ValidName(s) }

// encode writes a gpu-resync header: a structured-field list (RFC 9651) of
// node names.
func encode(nodes []string) string {
	list := make(httpsfv.List, 0, len(nodes))
	for _, n := range nodes {
		list = append(list, httpsfv.NewItem(n))
	}
	// Names are valid strings, so that marshalling cannot fail.
	text, _ := httpsfv.Marshal(list)
	return text
}

// Parse reads a gpu-resync header that answered a push of a node of a cluster;
// the node is empty when the push was not one node's. ?1 asks for all that the
// push could hold. Members that are not valid are left out and reported.
func Parse(header []string, cluster, node string) ([]Request, error) {
	list, err := wire.ParseList(header)
	if err != nil {
		return nil, err
	}
	if len(list) > MaxNodes {
		return nil, fmt.Errorf("%d nodes, at most %d may be named", len(list), MaxNodes)
	}
	var requests []Request
	var errs []error
	for _, m := range list {
		item, _ := m.(httpsfv.Item)
		switch v := item.Value.(type) {
		case bool:
			if v {
				requests = append(requests, everything(cluster, node))
			}
		case string:
			if wire.ValidName(v) {
				// The claimed cluster need not be this node's: a middle tier
				// asks for the clusters below it in turn.
				requests = append(requests, Request{Node: v})
			} else {
				errs = append(errs, fmt.Errorf("node name of %d bytes, must be 1 to %d printable ASCII characters", len(v), wire.MaxNameLength))
			}
		default:
			errs = append(errs, errors.New("a member is neither a node name nor ?1"))
		}
	}
	return requests, errors.Join(errs...)
}

// everything is all that a push of a node, or of any nodes, can hold.
func everything(cluster, node string) Request {
	if node == "" {
		return Request{}
	}
	return Request{Cluster: cluster, Node: node}
}
