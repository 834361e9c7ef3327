// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// Auth guards the fleet's data. Pages and the OpenAPI document are not guarded: a browser sends
// no token for a page, and the page asks for the token.
type Auth struct {
	// Authenticate returns a context with the client of a request, by its headers. An error
	// refuses the request.
	Authenticate func(ctx context.Context, headers map[string][]string) (context.Context, error)
	// Params are query parameters that Authenticate gets as headers.
	Params []string
	// Challenge is the WWW-Authenticate header of a refusal (RFC 9110, section 11.6.1).
	Challenge string
}

// public reports whether a pattern serves none of the fleet's data.
func public(pattern string) bool {
	return pattern == "GET /" || pattern == "GET /docs/" || pattern == "GET "+swaggerPath || strings.HasPrefix(pattern, "GET /openapi")
}

// admit returns the request with its authenticated client, or refuses it.
func (a *Auth) admit(w http.ResponseWriter, r *http.Request) (*http.Request, bool) {
	if a == nil {
		return r, true
	}
	headers := r.Header
	if len(a.Params) > 0 {
		headers, r = a.split(r)
	}
	ctx, err := a.Authenticate(r.Context(), headers)
	if errors.Is(err, webguard.ErrBusy) {
		webguard.Problem(w, http.StatusTooManyRequests, err.Error())
		return nil, false
	}
	if err != nil {
		w.Header().Set("WWW-Authenticate", a.Challenge)
		webguard.Problem(w, http.StatusUnauthorized, err.Error())
		return nil, false
	}
	return r.WithContext(ctx), true
}

// split moves credentials from the query to the headers: the API has no such parameters.
func (a *Auth) split(r *http.Request) (http.Header, *http.Request) {
	headers := r.Header.Clone()
	var rest []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(value)
		if err != nil || !slices.Contains(a.Params, name) {
			rest = append(rest, pair)
			continue
		}
		headers[name] = append(headers[name], value)
	}
	r = r.Clone(r.Context())
	r.URL.RawQuery = strings.Join(rest, "&")
	return headers, r
}
