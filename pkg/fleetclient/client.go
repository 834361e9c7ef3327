// SPDX-License-Identifier: Apache-2.0

package fleetclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Error is an answer that is not what was asked for.
type Error struct {
	// Status of HTTP.
	Status int
	// Problem is what the server says of it (RFC 9457); zero where it says nothing.
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

// AnswerError makes an error of an answer, whatever its body is: a proxy on the
// way answers in words of its own.
func AnswerError(status int, body []byte) error {
	e := &Error{Status: status}
	if err := json.Unmarshal(body, &e.Problem); err != nil {
		e.Problem = ErrorModel{}
	}
	return e
}

// WithBearerToken authenticates each request with the token that the function
// returns, so that a token that is renewed can be read anew.
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
