// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/internal/admission"
)

const (
	// perByte is how many bytes a byte of a push becomes at worst: the two bytes of an
	// empty span are a struct of 208 bytes, and 16 of a list that has room for as many more.
	perByte = 112
	// maxMessage is half of what could end the process: a list in a list is four bytes and a
	// call of a decoder, and Go ends a process whose stack wants more than 1 GB.
	maxMessage = 4 << 20
	// maxDepth of JSON: the limit that protobuf's parsers have by default. OTLP needs some
	// 14 for a point's attribute, and 3 more for each list or map in it.
	maxDepth = 100
)

var (
	errTooLarge = errors.New("the message is too large")
	errTooDeep  = fmt.Errorf("the message is nested deeper than %d levels", maxDepth)
)

// The requests of OTLP, by the method of gRPC and the end of the URL's path; a receiver
// may put more before the path.

func isExport(method string) bool {
	return strings.HasPrefix(method, "/opentelemetry.proto.collector.") && strings.HasSuffix(method, "/Export")
}

func isPush(path string) bool {
	for _, end := range [...]string{"/v1/metrics", "/v1/logs", "/v1/traces", "/v1development/profiles"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

// fits says of so many bytes of a message whether there is ever memory for them.
func (e *admissionExtension) fits(size int) error {
	byMemory := int(e.limiter.MostBytes() / perByte)
	switch {
	case size > byMemory:
		return fmt.Errorf("%w: it has %d bytes or more, must be at most %d with the `max_bytes` of admission, which is %d for each byte of one cluster's share",
			errTooLarge, size, byMemory, perByte)
	case size > maxMessage:
		return fmt.Errorf("%w: it has %d bytes or more, must be at most %d", errTooLarge, size, maxMessage)
	}
	return nil
}

// pay reserves what a message may become, beside what is reserved for it already. The
// error is a *admission.RefusedError, or says why nobody is to decode it.
func (e *admissionExtension) pay(p *admission.Permit, size, already int) error {
	if err := e.fits(size); err != nil {
		return err
	}
	return p.Reserve(int64(perByte*size - already))
}

// checkJSON finds out how deep a message is, for a parser that calls itself for each level.
func checkJSON(body []byte) error {
	tokens := json.NewDecoder(bytes.NewReader(body))
	tokens.UseNumber()
	for depth := 0; ; {
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) && depth == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the message is not well-formed JSON: %w", err)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return errTooDeep
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// reject counts a push that nobody is to decode.
func (e *admissionExtension) reject(ctx context.Context, cause string) {
	e.telemetry.ExtensionAdmissionRejections.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(attribute.String("cause", cause))))
}
