// SPDX-License-Identifier: Apache-2.0

// Package threshold holds the straggler threshold and the verdicts as they travel: from
// the gateway's straggler processor through the threshold extension into the response of
// a push, and from there to the straggler processor of the node that pushed. It decides
// nothing about stragglers; internal/detect/straggler does.
package threshold // import "github.com/gpu-collector/gpu-collector/internal/detect/threshold"

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// MaxTTL bounds how long a received threshold may claim to be fresh.
const MaxTTL = time.Hour

// Value is the threshold of one peer group, or of a whole cluster when Group is empty. Its
// names in JSON are those of the threshold API.
// Scores and thresholds are in [0,1].
type Value struct {
	Group string `json:"group"`
	// Version grows with each computation, across restarts of the gateway too:
	// it is the time of the computation in Unix milliseconds.
	Version int64 `json:"version"`
	// Threshold below which a node's score makes it a straggler.
	Threshold float64 `json:"threshold"`
	// QuorumMet is false when too few nodes were active to compute Threshold
	// anew; Threshold is then the last value that had a quorum.
	QuorumMet bool `json:"quorum_met"`
	// Median and Scale (1.4826*MAD) of the active nodes' scores, K the factor on Scale.
	Median float64 `json:"median"`
	Scale  float64 `json:"scale"`
	K      float64 `json:"k"`
	// Nodes is the number of active nodes behind Median.
	Nodes int `json:"nodes"`
	// Ref is the peers' median throughput in the unit of the signal, 0 when unknown.
	Ref float64 `json:"ref,omitempty"`
	// TTL is how long the value may be used after it was received.
	TTL time.Duration `json:"-"`
	// Verdicts are the group's stragglers. With All they are all of them: any other node
	// of the group is in good standing. Where About is not empty, both are of that node
	// alone.
	Verdicts *Verdicts `json:"-"`
	All      bool      `json:"-"`
	About    string    `json:"-"`
}

// Of returns the verdict on a node where it is a straggler. known is false where v has no
// verdict on the node, as that of a gateway without verdicts.
func (v *Value) Of(node string) (verdict Verdict, straggler, known bool) {
	if own, _ := v.Verdicts.of(node); len(own) > 0 && node != "" {
		return own[0], true, true
	}
	return Verdict{}, false, v.AllOf(node)
}

// AllOf reports whether a node that v does not list is in good standing. No list has a
// name without a wire form.
func (v *Value) AllOf(node string) bool {
	return v.All && (v.About == "" || v.About == node) && (node == "" || pushheaders.ValidName(node))
}

// Validate reports why v may not be used, nil when it may.
func (v *Value) Validate() error {
	switch {
	case !inUnit(v.Threshold):
		return fmt.Errorf("threshold %v is not in [0,1]", v.Threshold)
	case !inUnit(v.Median):
		return fmt.Errorf("median %v is not in [0,1]", v.Median)
	case !finite(v.Scale) || v.Scale < 0:
		return fmt.Errorf("scale %v is not a finite number >= 0", v.Scale)
	case !finite(v.K) || v.K < 0:
		return fmt.Errorf("k %v is not a finite number >= 0", v.K)
	case !finite(v.Ref) || v.Ref < 0:
		return fmt.Errorf("ref %v is not a finite number >= 0", v.Ref)
	case v.Nodes < 0:
		return fmt.Errorf("node count %d is negative", v.Nodes)
	case v.TTL <= 0 || v.TTL > MaxTTL:
		return fmt.Errorf("ttl %s is not in (0s,%s]", v.TTL, MaxTTL)
	}
	return nil
}

// Publisher takes the thresholds that a gateway computed.
type Publisher interface {
	// Publish replaces everything published before. It keeps snap: the caller
	// may not change it afterwards.
	Publish(snap *Snapshot)
}

// Source gives a node the thresholds that came back with its pushes.
type Source interface {
	// SetClaim sets the cluster, node and groups that the next pushes ask for.
	SetClaim(pushheaders.Claim)
	// Received returns the newest threshold of a peer group of a cluster.
	Received(cluster, group string) (Received, bool)
	// Reachable reports whether the last push was answered; false before the first.
	Reachable() bool
}

// Transport is how a push came.
type Transport string

// Transports.
const (
	GRPC Transport = "grpc"
	HTTP Transport = "http"
)

// Push is a push of metrics, as far as its answer depends on it.
type Push struct {
	Transport Transport
	// Header returns the values of a header of the request.
	Header func(name string) []string
	// Caller is the client that pushes, and Node the node's name where it is one node's.
	Caller pushheaders.Caller
	Node   string
	// Invalid is set where the client claims what cannot name a cluster.
	Invalid bool
}

// Server answers pushes. The extension is one, for a receiver that asks it directly.
type Server interface {
	// Claim returns the cluster and node that a client claims: in headers, or the cluster
	// in the query of the URL.
	Claim(transport Transport, header func(name string) []string, query string) (cluster, node string)
	// Push returns a context for the pipeline, and the headers of the answer, to be asked
	// for once the pipeline is done.
	Push(ctx context.Context, p *Push) (context.Context, func() []pushheaders.Header)
	// Guard serves the threshold API beside the pushes, and refuses those of foreign pages.
	Guard(push http.Handler) http.Handler
}

// Received is a Value and when it was last confirmed.
type Received struct {
	Value
	At time.Time
}

// Fresh reports whether the value is within its own TTL.
func (r *Received) Fresh(now time.Time) bool { return now.Sub(r.At) <= r.TTL }

func inUnit(f float64) bool { return f >= 0 && f <= 1 }

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
