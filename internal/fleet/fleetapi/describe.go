// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"embed"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// docs is the page that renders /openapi.json. It loads nothing from elsewhere.
//
//go:embed docs
var docs embed.FS

// describe adds to the document what holds for all operations: credentials, the form of lists,
// headers of refusals.
func (a *API) describe() {
	doc := a.huma.OpenAPI()
	doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"bearer": {Type: "http", Scheme: "bearer"}, "basic": {Type: "http", Scheme: "basic"},
	}
	// Any of them, or none: the operator decides.
	doc.Security = []map[string][]string{{}, {"bearer": {}}, {"basic": {}}}
	joined := false
	for _, item := range doc.Paths {
		for _, p := range item.Get.Parameters {
			if p.Schema.Type == huma.TypeArray {
				p.Explode = &joined // splitList splits them
			}
		}
		for status, text := range map[string]string{"429": "Seconds until there may be room", "503": "Seconds until another try, where that may help"} {
			if r := item.Get.Responses[status]; r != nil {
				r.Headers = map[string]*huma.Header{"Retry-After": {Description: text, Schema: &huma.Schema{Type: huma.TypeInteger}}}
			}
		}
		if r := item.Get.Responses["401"]; r != nil {
			r.Headers = map[string]*huma.Header{"WWW-Authenticate": {Description: "Which credentials are wanted", Schema: &huma.Schema{Type: huma.TypeString}}}
		}
	}
}

// retryAfter is how long a refused client should wait: streams end and files are tried again
// within seconds.
const retryAfter = 10 * time.Second

func retryLater(err error) error {
	return huma.ErrorWithHeaders(err, http.Header{"Retry-After": {strconv.Itoa(int(retryAfter.Seconds()))}})
}
