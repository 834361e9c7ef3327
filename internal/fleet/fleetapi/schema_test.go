// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// hostile are values that somebody who wishes no good, or slipped, would send.
var hostile = []string{
	"", " ", "0", "-1", "1", "NaN", "-Inf", "1e309", "-0", "0x10", "1_000", "9223372036854775807", "9223372036854775808", "0.5",
	"true", "FALSE", "null", "undefined", "[]", "{}", ",", ",,,,", "a,,b", "*", "**", "n*", "..", "../../etc/passwd", "/", "//", "%", "%00", "\x00", "\n\r", "\xff\xfe",
	"🙂", "ａ", "' OR 1=1 --", "\"; DROP TABLE samples; --", "<script>", "${jndi:ldap://x}", "{{7*7}}", "up{job=~\".*\"}", "}) or vector(1)",
	"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "10000-01-01T00:00:00Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05+14:00", "2026-02-30T00:00:00Z", "1767323045", "-1h", "1h", "87600h", "1e99h",
	"active", "missing", "healthy", "unhealthy", "host", "gpu", "metric", "cluster", "c1", "n1", "GPU-a", strings.Repeat("a", 254), strings.Repeat("x,", 2000), strings.Repeat("é", 5000),
}

// target draws a request to an operation: some of its parameters, with values
// that fit the schema or do not.
func (o operation) target(rng *rand.Rand) string {
	path, query := o.path, url.Values{}
	for _, ref := range o.Parameters {
		p := ref.Value
		value := o.value(rng, p.Schema.Value)
		switch {
		case p.In == openapi3.ParameterInPath:
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case rng.IntN(3) == 0:
			query.Set(p.Name, value)
			if rng.IntN(20) == 0 {
				query.Add(p.Name, value)
			}
		}
	}
	if rng.IntN(20) == 0 {
		query.Set(hostile[rng.IntN(len(hostile))], "x")
	}
	return path + "?" + query.Encode()
}

func (o operation) value(rng *rand.Rand, s *openapi3.Schema) string {
	if rng.IntN(2) == 0 {
		return hostile[rng.IntN(len(hostile))]
	}
	if s.Items != nil {
		s = s.Items.Value
	}
	switch {
	case len(s.Enum) > 0:
		return fmt.Sprint(s.Enum[rng.IntN(len(s.Enum))])
	case s.Type.Is("boolean"):
		return strconv.FormatBool(rng.IntN(2) == 0)
	case s.Type.Is("integer"):
		return strconv.Itoa(rng.IntN(1200))
	case s.Type.Is("number"):
		return strconv.FormatFloat(rng.Float64(), 'g', -1, 64)
	case s.Format == "date-time":
		return t0.Add(-time.Duration(rng.Int64N(int64(48 * time.Hour)))).Format(time.RFC3339Nano)
	default:
		return []string{"c1", "n1", "n2", "g", "GPU-a", "hw.temperature", "nobody"}[rng.IntN(7)]
	}
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
	return o.conforms(t, r, w)
}

// conforms holds an answer to the document.
func (o operation) conforms(t testing.TB, r *http.Request, w *httptest.ResponseRecorder) int {
	t.Helper()
	u, target := r.URL, r.RequestURI
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
	a := newAPI(func(o *Options) { o.History = &history{} })
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

// TestNoParameterBreaksTheServer sends what the document allows and what it does
// not, to each operation.
func TestNoParameterBreaksTheServer(t *testing.T) {
	a, ops := fuzzed(t)
	for _, o := range ops {
		t.Run(o.OperationID, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			answers := map[int]int{}
			for range 1000 {
				answers[o.check(t, a, o.target(rng))]++
			}
			// By itself each hostile value too, whatever was drawn.
			for _, p := range o.Parameters {
				for _, v := range hostile {
					if p.Value.In == openapi3.ParameterInQuery {
						path := strings.NewReplacer("{node}", "n1", "{host}", "n1", "{id}", "e1").Replace(o.path)
						answers[o.check(t, a, path+"?"+url.Values{p.Value.Name: {v}}.Encode())]++
					}
				}
			}
			assert.NotZero(t, answers[http.StatusOK]+answers[http.StatusNotFound], "%v: no request was a good one", answers)
		})
	}
}

// FuzzAPI sends any query to any operation.
func FuzzAPI(f *testing.F) {
	a, ops := fuzzed(f)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range ops {
		for range 3 {
			_, query, _ := strings.Cut(ops[i].target(rng), "?")
			f.Add(uint8(i), "n1", query)
		}
	}
	f.Fuzz(func(t *testing.T, op uint8, name, query string) {
		o := ops[int(op)%len(ops)]
		path := strings.NewReplacer("{node}", url.PathEscape(name), "{host}", url.PathEscape(name), "{id}", url.PathEscape(name)).Replace(o.path)
		o.check(t, a, path+"?"+query)
	})
}

// TestNoTurnIsDocumented has one reader wait with as many questions as it may. The next
// ones are sent away as the document says; health is told all the same.
func TestNoTurnIsDocumented(t *testing.T) {
	a, ops := fuzzed(t)
	for _, o := range ops {
		path := strings.NewReplacer("{node}", "n1", "{host}", "n1", "{id}", "e1").Replace(o.path)
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		for _, turns := range []*turns{a.views, a.past} {
			for turns.waiting.Take(a.reader(r), 1) == 1 {
			}
		}
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if o.path == healthPath {
			assert.Equal(t, http.StatusOK, w.Code)
			continue
		}
		if !strings.HasPrefix(o.path, "/api/") {
			continue
		}
		require.Equal(t, http.StatusServiceUnavailable, o.conforms(t, r, w), o.path)
		said := o.Responses.Status(http.StatusServiceUnavailable)
		require.NotNil(t, said, o.path)
		require.Contains(t, said.Value.Headers, "Retry-After", o.path)
		assert.Equal(t, "1", w.Header().Get("Retry-After"))
	}
}
