// SPDX-License-Identifier: Apache-2.0

package fleetclient_test

import (
	"context"
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// ExampleCache is the loop of a scheduler: one refresh per pass, then local
// reads for each job that waits for a node.
func ExampleCache() {
	gateway := newGateway(3) // in production: the URL of the gateway, port 8086
	defer gateway.Close()
	gateway.put("c1", "n0001", 1.4)

	client, err := fleetclient.NewClientWithResponses(gateway.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	cache := fleetclient.NewCache(client)
	fit := func(node string) bool {
		n, ok := cache.Node(node)
		switch {
		case cache.Stale(time.Minute) || !ok:
			return true // nothing is known against it
		case cache.NodeAge(n) > 2*time.Minute:
			return false // silent
		default:
			return !n.Straggler && n.Health != fleetclient.NodeHealthUnhealthy
		}
	}

	jobs := [][]string{{"job-a", "job-b"}, {"job-c"}} // that wait, by pass
	free := []string{"n0000", "n0001", "n0002", "n0003"}
	for _, waiting := range jobs {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := cache.Refresh(ctx, fleetclient.Query{Clusters: []string{"c1"}}); err != nil {
			fmt.Println(err) // the pass goes on with what is known
		}
		cancel()
		for _, job := range waiting {
			for i, node := range free {
				if fit(node) {
					fmt.Println(job, "runs on", node)
					free = append(free[:i], free[i+1:]...)
					break
				}
			}
		}
	}
	for _, n := range cache.Stragglers() {
		fmt.Println("avoided:", n.Node)
	}
	// Output:
	// job-a runs on n0000
	// job-b runs on n0002
	// job-c runs on n0003
	// avoided: n0001
}
