// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
)

const indexPath = "/api/v1/"

// Index lists the requests that the API answers.
type Index struct {
	Document   string       `json:"openapi"`
	Reader     string       `json:"docs"`
	Operations []IndexEntry `json:"operations"`
}

// IndexEntry is one request.
type IndexEntry struct {
	Method     string   `json:"method"`
	Path       string   `json:"path"`
	Summary    string   `json:"summary"`
	Parameters []string `json:"parameters"`
}

// index lists all operations of the document.
func (a *API) index(w http.ResponseWriter, _ *http.Request) {
	out := Index{Document: "/openapi.json", Reader: "/docs/", Operations: []IndexEntry{}}
	for path, item := range a.huma.OpenAPI().Paths {
		e := IndexEntry{Method: http.MethodGet, Path: path, Summary: item.Get.Summary, Parameters: []string{}}
		for _, p := range item.Get.Parameters {
			e.Parameters = append(e.Parameters, p.Name)
		}
		out.Operations = append(out.Operations, e)
	}
	slices.SortFunc(out.Operations, func(a, b IndexEntry) int { return cmp.Compare(a.Path, b.Path) })
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(&out) // else the client is gone
}
