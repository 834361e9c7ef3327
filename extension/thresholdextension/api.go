// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

const thresholdPath, thresholdsPath = "/api/v1/threshold", "/api/v1/thresholds"

// thresholdBody answers GET /api/v1/threshold. A cluster without a threshold
// yet has 0 and false, as pollers of this API expect, not an error.
type thresholdBody struct {
	Threshold float64     `json:"threshold"`
	QuorumMet bool        `json:"quorum_met"`
	Cluster   string      `json:"cluster"`
	Groups    []groupBody `json:"groups,omitempty"`
}

type groupBody struct {
	threshold.Value
	TTL float64 `json:"ttl_seconds"`
	// Stragglers are listed greatest loss first.
	Stragglers []verdictBody `json:"stragglers,omitempty"`
}

type verdictBody struct {
	Node   string    `json:"node"`
	Since  time.Time `json:"since,omitzero"` // where it is known
	Loss   float64   `json:"loss"`
	Signal string    `json:"signal,omitempty"`
}

// apiHandler answers the GET requests and leaves the rest to next.
func (e *thresholdExtension) apiHandler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc(thresholdPath, e.serveAPI)
	mux.HandleFunc(thresholdsPath, e.serveAPI)
	return mux
}

func isAPI(r *http.Request) bool { return r.URL.Path == thresholdPath || r.URL.Path == thresholdsPath }

func (e *thresholdExtension) serveAPI(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		webguard.Problem(w, http.StatusMethodNotAllowed, "only GET is served here")
		return
	}
	query := r.URL.Query()
	var caller pushheaders.Caller
	var invalid bool
	id, err := e.cfg.Of(r.Context())
	if err == nil { // else it has no cluster
		claimed, _ := e.Claim(threshold.HTTP, r.Header.Values, r.URL.RawQuery)
		caller, invalid = id.Caller(cmp.Or(query.Get("cluster"), claimed)) // Ingero's pollers send cluster_id
	}
	switch {
	case invalid:
		webguard.Problem(w, http.StatusBadRequest, "`cluster` is not 1 to 253 printable ASCII characters")
	case r.URL.Path == thresholdsPath:
		all := err == nil && id.Cluster == "" && cmp.Or(query.Get("cluster"), query.Get(clusterQuery)) == ""
		writeJSON(w, e.bodies(func(name string) bool { return all || name == caller.Cluster }))
	case caller.Cluster == "":
		webguard.Problem(w, http.StatusBadRequest, "`cluster` is missing, it names the cluster: "+thresholdPath+"?cluster=NAME")
	default:
		body := e.body(caller.Cluster, e.published.Cluster(caller.Cluster, e.now()))
		body.Groups = nil // pollers read at most 8 KiB
		writeJSON(w, body)
	}
}

// bodies are those of the clusters that are asked for.
func (e *thresholdExtension) bodies(wanted func(name string) bool) []thresholdBody {
	bodies := []thresholdBody{}
	if snap := e.published.Snapshot(e.now()); snap != nil {
		for _, name := range slices.Sorted(maps.Keys(snap.Clusters)) {
			if wanted(name) {
				bodies = append(bodies, e.body(name, snap.Clusters[name]))
			}
		}
	}
	return bodies
}

func (e *thresholdExtension) body(name string, c *threshold.Cluster) thresholdBody {
	b := thresholdBody{Cluster: name}
	if c == nil {
		return b
	}
	if e.cfg.ingero() {
		b.Threshold, b.QuorumMet, _ = c.IngeroThreshold()
	} else if c.Wide != nil {
		b.Threshold, b.QuorumMet = c.Wide.Threshold, c.Wide.QuorumMet
	}
	for _, g := range slices.Sorted(maps.Keys(c.Groups)) {
		v := c.Groups[g].Value
		body := groupBody{Value: v, TTL: v.TTL.Seconds()}
		for _, s := range v.Verdicts.List() {
			x := verdictBody{Node: s.Node, Since: s.Since, Loss: s.Loss}
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
	_ = json.NewEncoder(w).Encode(body) // fails when the client is gone
}
