// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
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
		for method, op := range map[string]*huma.Operation{http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodDelete: item.Delete} {
			if op == nil {
				continue
			}
			e := IndexEntry{Method: method, Path: path, Summary: op.Summary, Parameters: []string{}}
			for _, p := range op.Parameters {
				e.Parameters = append(e.Parameters, p.Name)
			}
			out.Operations = append(out.Operations, e)
		}
	}
	slices.SortFunc(out.Operations, func(a, b IndexEntry) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method)) })
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = encodeJSON(w, &out)
}
