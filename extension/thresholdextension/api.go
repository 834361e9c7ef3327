// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

const (
	thresholdPath  = "/api/v1/threshold"
	thresholdsPath = "/api/v1/thresholds"
)

// thresholdBody answers GET /api/v1/threshold. A cluster without a threshold
// yet has 0 and false, as pollers of this API expect, not an error.
type thresholdBody struct {
	Threshold float64     `json:"threshold"`
	QuorumMet bool        `json:"quorum_met"`
	Cluster   string      `json:"cluster"`
	Groups    []groupBody `json:"groups,omitempty"`
}

type groupBody struct {
	Group     string  `json:"group"`
	Threshold float64 `json:"threshold"`
	QuorumMet bool    `json:"quorum_met"`
	Median    float64 `json:"median"`
	Scale     float64 `json:"scale"`
	K         float64 `json:"k"`
	Nodes     int     `json:"nodes"`
	Ref       float64 `json:"ref,omitempty"`
	Version   int64   `json:"version"`
	TTL       float64 `json:"ttl_seconds"`
	// Stragglers are listed greatest loss first.
	Stragglers []verdictBody `json:"stragglers,omitempty"`
}

type verdictBody struct {
	Node   string     `json:"node"`
	Since  *time.Time `json:"since,omitempty"` // where it is known
	Loss   float64    `json:"loss"`
	Signal string     `json:"signal,omitempty"`
}

// apiHandler answers the GET requests and leaves the rest to next.
func (e *thresholdExtension) apiHandler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAPI(r) {
			e.serveAPI(w, r)
		} else {
			next.ServeHTTP(w, r)
		}
	})
}

func isAPI(r *http.Request) bool { return r.URL.Path == thresholdPath || r.URL.Path == thresholdsPath }

func (e *thresholdExtension) serveAPI(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		webguard.Problem(w, http.StatusMethodNotAllowed, "only GET is served here")
		return
	}
	// Pollers of Ingero's say cluster_id; a push has no other name for it.
	name, other := r.URL.Query().Get("cluster"), r.URL.Query().Get(clusterQuery)
	if name != "" && other != "" && name != other {
		webguard.Problem(w, http.StatusBadRequest, "`cluster` and `cluster_id` name two clusters, they are one parameter: give `cluster`")
		return
	}
	claimed, _ := e.Claim(threshold.HTTP, r.Header.Values, r.URL.RawQuery)
	id, err := e.cfg.rule().Of(r.Context()) // nobody without credentials
	caller, invalid := id.Caller(cmp.Or(name, claimed))
	if invalid {
		webguard.Problem(w, http.StatusBadRequest, "`cluster` is not 1 to 253 printable ASCII characters")
		return
	}
	if r.URL.Path == thresholdPath {
		e.serveThreshold(w, caller)
	} else {
		e.serveThresholds(w, caller, name == "" && other == "" && err == nil && id.Cluster == clientidentity.Any)
	}
}

func (e *thresholdExtension) serveThreshold(w http.ResponseWriter, caller wire.Caller) {
	if caller.Cluster == "" {
		webguard.Problem(w, http.StatusBadRequest, "`cluster` is missing, it names the cluster: "+thresholdPath+"?cluster=NAME")
		return
	}
	// Without the groups: pollers read at most 8 KiB.
	body := e.body(caller.Cluster, e.published.Cluster(caller.Cluster, e.now()))
	body.Groups = nil
	writeJSON(w, body)
}

// serveThresholds lists all clusters, or the one that is asked for, or the authenticated
// client's own.
func (e *thresholdExtension) serveThresholds(w http.ResponseWriter, caller wire.Caller, all bool) {
	bodies := []thresholdBody{}
	if snap := e.published.Snapshot(e.now()); snap != nil {
		for _, name := range slices.Sorted(maps.Keys(snap.Clusters)) {
			if !all && name != caller.Cluster {
				continue
			}
			bodies = append(bodies, e.body(name, snap.Clusters[name]))
		}
	}
	writeJSON(w, bodies)
}

func (e *thresholdExtension) body(name string, c *threshold.Cluster) thresholdBody {
	b := thresholdBody{Cluster: name}
	if c == nil {
		return b
	}
	if e.ingero {
		b.Threshold, b.QuorumMet, _ = c.IngeroThreshold()
	} else if c.Wide != nil {
		b.Threshold, b.QuorumMet = c.Wide.Threshold, c.Wide.QuorumMet
	}
	for _, g := range slices.Sorted(maps.Keys(c.Groups)) {
		v := c.Groups[g]
		body := groupBody{
			Group: g, Threshold: v.Threshold, QuorumMet: v.QuorumMet, Median: v.Median, Scale: v.Scale,
			K: v.K, Nodes: v.Nodes, Ref: v.Ref, Version: v.Version, TTL: float64(v.TTL) / float64(time.Second),
		}
		for _, s := range v.Verdicts.List() {
			x := verdictBody{Node: s.Node, Loss: s.Loss}
			if !s.Since.IsZero() {
				x.Since = &s.Since
			}
			if s.Signal < nodesignal.Count {
				x.Signal = s.Signal.String()
			}
			body.Stragglers = append(body.Stragglers, x)
		}
		b.Groups = append(b.Groups, body)
	}
	return b
}

func writeJSON(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The client is gone when this fails; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(body)
}
