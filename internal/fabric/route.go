// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
)

// maxLower bounds how deep interfaces lie above each other: a VLAN over a bond over its
// adapters.
const maxLower = 4

// DefaultRoute returns the interfaces that carry the default route of IPv4, with those that
// lie below them. It is empty where there is none.
func DefaultRoute(proc, sys string) (map[string]bool, error) {
	root, err := procfs.NewFS(proc)
	if err != nil {
		return nil, err
	}
	routes, err := root.NetRoute()
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for i := range routes {
		if routes[i].Destination == 0 && routes[i].Mask == 0 {
			below(sys, routes[i].Iface, found, maxLower)
		}
	}
	return found, nil
}

func below(sys, name string, found map[string]bool, depth int) {
	if name == "" || name != filepath.Base(name) || found[name] || depth == 0 {
		return
	}
	found[name] = true
	entries, err := os.ReadDir(filepath.Join(sys, "class", "net", name))
	if err != nil {
		return
	}
	for _, entry := range entries {
		if lower, ok := strings.CutPrefix(entry.Name(), "lower_"); ok {
			below(sys, lower, found, depth-1)
		}
	}
}
