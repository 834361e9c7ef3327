// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// document is the served OpenAPI 3.0 document, validated.
func document(t testing.TB, a *API) *openapi3.T {
	t.Helper()
	w := ask(a, "/openapi-3.0.json")
	require.Equal(t, http.StatusOK, w.Code)
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	return doc
}

// operation is one of the document's.
type operation struct {
	path string
	*openapi3.Operation
}

func operations(doc *openapi3.T) []operation {
	var all []operation
	for _, path := range doc.Paths.InMatchingOrder() {
		for _, op := range doc.Paths.Value(path).Operations() {
			all = append(all, operation{path, op})
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.path, b.path) })
	return all
}

// hostile are values of an attack or a mistake.
var hostile = []string{
	"", " ", "0", "-1", "1", "NaN", "-Inf", "1e309", "-0", "0x10", "1_000", "9223372036854775807", "9223372036854775808", "0.5",
	"true", "FALSE", "null", "undefined", "[]", "{}", ",", ",,,,", "a,,b", "*", "**", "n*", "..", "../../etc/passwd", "/", "//", "%", "%00", "\x00", "\n\r", "\xff\xfe",
	"🙂", "ａ", "' OR 1=1 --", "\"; DROP TABLE samples; --", "<script>", "${jndi:ldap://x}", "{{7*7}}", "up{job=~\".*\"}", "}) or vector(1)",
	"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+14:00", "2026-02-30T00:00:00Z", "1767323045", "-1h", "1h", "87600h", "1e99h",
	"active", "missing", "healthy", "unhealthy", "host", "gpu", "metric", "cluster", "c1", "n1", "GPU-a", strings.Repeat("a", 254), strings.Repeat("x,", 2000), strings.Repeat("é", 5000),
}

// check holds an answer to the document: a status that it names, a body of its
// schema, and no error of the server.
func (o operation) check(t testing.TB, a *API, target string) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://gateway/", http.NoBody)
	u, err := url.Parse("http://gateway" + target)
	if err != nil {
		return 0 // no client can send it
	}
	r.URL, r.RequestURI = u, target
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	require.Less(t, w.Code, 500, "%s\n%s", target, w.Body)
	if w.Code >= 300 && w.Code < 400 || !strings.HasPrefix(u.Path, "/api/v1") {
		return w.Code // an empty name in the path is another path
	}
	media := w.Header().Get("Content-Type")
	if w.Code >= 400 {
		require.Equal(t, "application/problem+json", media, target)
	}
	answer := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, Route: &routers.Route{Operation: o.Operation, Method: http.MethodGet, Path: o.path}},
		Status:                 w.Code, Header: w.Header(),
	}
	require.NoError(t, openapi3filter.ValidateResponse(t.Context(), answer.SetBodyBytes(w.Body.Bytes())),
		"%s answered %d with a body that is not of the schema", target, w.Code)
	return w.Code
}

func fuzzed(t testing.TB) (*API, []operation) {
	t.Helper()
	a := newAPI(func(o *Options) {
		o.History = &history{samples: []fleethistory.Sample{{Cluster: "c", Node: "n", GPU: "g", Metric: "m", At: t0.UnixMilli(), Value: 3}}}
	})
	fleet(a)
	var ops []operation
	for _, o := range operations(document(t, a)) {
		if o.OperationID != "observe" { // does not end; its filters are those of list-nodes
			ops = append(ops, o)
		}
	}
	require.Greater(t, len(ops), 10)
	return a, ops
}

// at is the operation's path with a name in it.
func (o operation) at(name string) string {
	name = url.PathEscape(name)
	return strings.NewReplacer("{node}", name, "{host}", name, "{id}", name).Replace(o.path)
}

// TestNoParameterBreaksTheServer sends what the document allows and what it does
// not, to each operation.
func TestNoParameterBreaksTheServer(t *testing.T) {
	a, ops := fuzzed(t)
	for _, o := range ops {
		t.Run(o.OperationID, func(t *testing.T) {
			answers := map[int]int{}
			for _, name := range []string{"n1", "n2", "e1"} {
				answers[o.check(t, a, o.at(name))]++
			}
			for _, v := range hostile {
				answers[o.check(t, a, o.at(v))]++
				for _, p := range o.Parameters {
					answers[o.check(t, a, o.at("n1")+"?"+url.Values{p.Value.Name: {v}}.Encode())]++
				}
			}
			assert.NotZero(t, answers[http.StatusOK]+answers[http.StatusNotFound], "%v: no request was a good one", answers)
		})
	}
}

// FuzzAPI sends any query to any operation.
func FuzzAPI(f *testing.F) {
	a, ops := fuzzed(f)
	for i := range ops {
		f.Add(uint8(i), "n1", "cluster=c1&limit=2&page=1&since=2h&node=n*&health=healthy&min_utilization=0.5")
	}
	f.Fuzz(func(t *testing.T, op uint8, name, query string) {
		o := ops[int(op)%len(ops)]
		o.check(t, a, o.at(name)+"?"+query)
	})
}
