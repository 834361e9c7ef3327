// SPDX-License-Identifier: Apache-2.0

// Package fleetclient is the client of the fleet view's API: one method per
// operation, generated from the API's OpenAPI document.
package fleetclient // import "github.com/gpu-collector/gpu-collector/pkg/fleetclient"

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Error is an answer with another status than 200.
type Error struct {
	// Status of HTTP.
	Status int
	// Problem is the body of the answer (RFC 9457), zero where it is none.
	Problem ErrorModel
}

// Error implements error.
func (e *Error) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "status %d %s", e.Status, http.StatusText(e.Status))
	if e.Problem.Detail != nil && *e.Problem.Detail != "" {
		s.WriteString(": " + *e.Problem.Detail)
	}
	if e.Problem.Errors == nil {
		return s.String()
	}
	for _, d := range *e.Problem.Errors {
		if d.Location != nil && d.Message != nil {
			fmt.Fprintf(&s, "; `%s`: %s", *d.Location, *d.Message)
		}
	}
	return s.String()
}

// AnswerError makes an error of an answer. Its body may be of a proxy on the way, and is then
// ignored.
func AnswerError(status int, body []byte) error {
	e := &Error{Status: status}
	if err := json.Unmarshal(body, &e.Problem); err != nil {
		e.Problem = ErrorModel{}
	}
	return e
}

// WithBearerToken authenticates each request with the function's token, which may be renewed
// between two requests. An empty token sends no header; the function's error fails the request.
func WithBearerToken(token func() (string, error)) ClientOption {
	return WithRequestEditorFn(func(_ context.Context, req *http.Request) error {
		t, err := token()
		if err != nil {
			return err
		}
		if t = strings.TrimSpace(t); t != "" {
			req.Header.Set("Authorization", "Bearer "+t)
		}
		return nil
	})
}
