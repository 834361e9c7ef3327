// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

// maxBody is that of a request that writes: a test's output is the longest.
const maxBody = 64 << 10

// write registers an operation that writes. A path has an operation that reads as well.
func write[I, O any](a *API, method, id, path, tag, summary string, status int, f func(context.Context, *I) (*O, error)) {
	huma.Register(a.huma, huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary, Tags: []string{tag}, DefaultStatus: status, MaxBodyBytes: maxBody,
		Description: "Writes need an authenticator at the server; each one is in the audit.",
		Errors: []int{
			http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusServiceUnavailable,
		},
	}, func(ctx context.Context, in *I) (*output[O], error) {
		body, err := f(ctx, in)
		if err != nil {
			return nil, refusal(err)
		}
		if a.o.Save != nil {
			// It is kept before it is answered. A failure is told by the health, and tried
			// again.
			_ = a.o.Save(ctx)
		}
		return &output[O]{CacheControl: "no-store", Body: body}, nil
	})
}

// refusal gives a word that was not taken its status.
func refusal(err error) error {
	var r *people.Refusal
	switch {
	case !errors.As(err, &r):
		return err
	case r.Full:
		return huma.Error409Conflict(r.Error())
	default:
		return huma.Error422UnprocessableEntity(r.Error())
	}
}

type personKey struct{}

// person is who makes a request, for the audit.
func person(ctx context.Context) string {
	name, _ := ctx.Value(personKey{}).(string)
	return name
}

// admitWrite lets a request that writes pass, or answers it. The audit has the refusals.
func (a *API) admitWrite(w http.ResponseWriter, r *http.Request, pattern string) (*http.Request, bool) {
	if !strings.HasPrefix(pattern, r.Method+" /api/") {
		w.Header().Set("Allow", "GET, HEAD")
		webguard.Problem(w, http.StatusMethodNotAllowed, r.Method+" is not served here, only GET")
		return nil, false
	}
	refuse := func(by string, status int, text string) (*http.Request, bool) {
		a.o.People.Note(people.Audit{At: a.o.Now(), By: by, Word: wordOf(pattern), Outcome: people.Refused, Target: r.Method + " " + r.URL.Path, Text: text})
		if status != http.StatusUnauthorized {
			webguard.Problem(w, status, text)
		}
		return nil, false
	}
	address := "address " + webguard.Address(r)
	if a.o.Auth == nil {
		return refuse(address, http.StatusForbidden, "writes need an authenticator, and this server has none: set `http::auth` of the fleet_view extension")
	}
	admitted, ok := a.o.Auth.admit(w, r)
	if !ok {
		return refuse(address, http.StatusUnauthorized, "not authenticated")
	}
	name := ""
	if a.o.Reader != nil {
		_, name, _ = strings.Cut(a.o.Reader(admitted.Context()), " ")
	}
	if len(a.o.Writers) > 0 && !slices.Contains(a.o.Writers, name) {
		return refuse(or(name, address), http.StatusForbidden, or(name, "a client without a name")+" may read, but not write: `ledger::writers` of the fleet_view extension lists those who may")
	}
	// A page of another site may make a browser send the credentials that it knows.
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return refuse(or(name, address), http.StatusForbidden, "the request comes from a page of another site: "+err.Error())
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method == http.MethodPost && kind != "application/json" {
		return refuse(or(name, address), http.StatusUnsupportedMediaType, "the body must be JSON, with Content-Type application/json")
	}
	return admitted.WithContext(context.WithValue(admitted.Context(), personKey{}, or(name, address))), true
}

func wordOf(pattern string) string {
	switch {
	case strings.HasPrefix(pattern, "DELETE "):
		return people.WordEndSilence
	case strings.Contains(pattern, silencesPath):
		return people.WordSilence
	case strings.Contains(pattern, acknowledgementsPath):
		return people.WordAcknowledge
	default:
		return people.WordNote
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
