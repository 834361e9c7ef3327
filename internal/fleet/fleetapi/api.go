// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// Options of an API.
type Options struct {
	Store   *fleetstate.Store
	Feed    *fleetstate.Feed
	History fleethistory.History
	// Version of the product.
	Version string
	// Now is the clock.
	Now func() time.Time
	// Stream bounds the live stream, Clients its clients at a time.
	Stream  StreamOptions
	Clients int
	// Pages serves all paths outside of the API, such as the web page; none by default.
	Pages http.Handler
	// Auth guards the fleet's data; nil serves all clients.
	Auth *Auth
	// Reader names the client of a request from the context that Auth returned; without a name,
	// or without Reader, the address does. One reader has a share of the streams.
	Reader func(context.Context) string
}

// API answers the requests.
type API struct {
	o       Options
	huma    huma.API
	mux     *http.ServeMux
	started time.Time
	done    chan struct{}
	ended   atomic.Bool
	// cut counts the clients of the stream that were too slow.
	cut    atomic.Int64
	shared atomic.Pointer[shared]
	// streams counts clients of the stream by reader.
	streams *fairshare.Ledger[string]
	// views are the requests for the present, past those for the history.
	views, past *turns
}

func init() {
	// An empty list is [] here, never null.
	huma.DefaultArrayNullable = false
}

// New returns the API.
func New(o Options) *API {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.History == nil {
		o.History = fleethistory.None{}
	}
	o.Stream = o.Stream.WithDefaults()
	a := &API{
		o: o, mux: http.NewServeMux(), started: o.Now(), done: make(chan struct{}),
		views: newTurns(o.Stream.ReaderShare), past: newTurns(o.Stream.ReaderShare),
		streams: fairshare.New[string](o.Clients, o.Stream.ReaderShare),
	}
	// Answers have no schema links, and the document loads nothing from elsewhere.
	cfg := huma.DefaultConfig("gpu-collector fleet view", o.Version)
	cfg.Info.Description = "The state of a GPU fleet: nodes, GPUs, stragglers, episodes. Every view says how old it is. " + aliasText
	// Its `identifier` is of 3.1 only, and would stay in the 3.0 document.
	cfg.Info.License = &huma.License{Name: "Apache-2.0", URL: "https://www.apache.org/licenses/LICENSE-2.0"}
	cfg.Formats = map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat}
	cfg.DocsPath, cfg.SchemasPath, cfg.CreateHooks = "", "", nil
	a.huma = humago.New(a.mux, cfg)
	a.huma.UseMiddleware(a.knownParams)
	a.registerFleet()
	a.registerTelemetry()
	a.registerObserve()
	a.describe()
	a.registerOtherNames()
	a.mux.Handle("GET /docs/", http.FileServerFS(docs))
	if o.Pages != nil {
		a.mux.Handle("GET /", o.Pages)
	}
	return a
}

// OpenAPI returns the document of the API, version 3.1.
func (a *API) OpenAPI() *huma.OpenAPI { return a.huma.OpenAPI() }

// Cut returns how many clients of the stream were too slow and cut off.
func (a *API) Cut() int64 { return a.cut.Load() }

// Close ends the streams, so that a server can shut down.
func (a *API) Close() {
	if !a.ended.Swap(true) {
		close(a.done)
	}
}

// get registers an operation that reads. Besides the given statuses it may answer 401, 422 for
// unknown parameters, 404 for an unknown cluster and 503 for a busy server.
func get[I, O any](a *API, id, path, tag, summary string, f func(context.Context, *I) (*O, error), statuses ...int) {
	if path != healthPath {
		statuses = append(statuses, http.StatusServiceUnavailable, http.StatusNotFound)
	}
	huma.Register(a.huma, huma.Operation{
		OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Tags: []string{tag},
		Errors: append([]int{http.StatusUnauthorized, http.StatusUnprocessableEntity}, statuses...),
	}, func(ctx context.Context, in *I) (*output[O], error) {
		body, err := f(ctx, in)
		if err != nil {
			return nil, err
		}
		return &output[O]{CacheControl: "no-store", Body: body}, nil
	})
}

type output[O any] struct {
	CacheControl string `header:"Cache-Control"`
	Body         *O
}

// contentSecurityPolicy lets pages load what this server serves and nothing else.
const contentSecurityPolicy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		webguard.Problem(w, http.StatusMethodNotAllowed, "only GET is served here")
		return
	}
	_, pattern := a.mux.Handler(r)
	api := r.URL.Path == "/api" || strings.HasPrefix(r.URL.Path, "/api/")
	if api || !public(pattern) {
		var ok bool
		if r, ok = a.o.Auth.admit(w, r); !ok {
			return
		}
	}
	if pattern == "" || api && public(pattern) {
		webguard.Problem(w, http.StatusNotFound, "there is nothing at "+r.URL.Path+"; /docs/ and "+indexPath+" list what there is")
		return
	}
	switch {
	case pattern == "GET "+observePath && r.Method == http.MethodHead: // a stream without a body would never end
		streamHeader(h)
	case pattern == "GET "+observePath:
		a.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), readerKey{}, a.reader(r))))
	case !api || pattern == "GET "+healthPath:
		a.mux.ServeHTTP(w, r)
	case strings.HasPrefix(r.URL.Path, "/api/v1/telemetry"), pattern == "GET "+pastPath:
		a.past.serve(w, r, a.reader(r), a.mux)
	default:
		a.views.serve(w, r, a.reader(r), a.mux)
	}
}

// healthPath needs no turn: a busy server is healthy.
const healthPath = "/api/v1/health"

type readerKey struct{}

func (a *API) reader(r *http.Request) string {
	if a.o.Reader != nil {
		if name := a.o.Reader(r.Context()); name != "" {
			return name
		}
	}
	return webguard.Address(r)
}
