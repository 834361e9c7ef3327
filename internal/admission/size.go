// SPDX-License-Identifier: Apache-2.0

package admission

import "errors"

// Signal is a signal of OTLP.
type Signal int

// Signals.
const (
	Metrics Signal = iota
	Logs
	Traces
)

// Errors of Decoded.
var (
	ErrTooDeep   = errors.New("the message is nested too deep")
	ErrMalformed = errors.New("the message is malformed")
)

// Decoded is what a message takes when decoded.
func Decoded(_ Signal, msg []byte) (int, error) { return 12 * len(msg), nil }

// DecodedJSON is what a message in JSON takes when decoded.
func DecodedJSON(msg []byte) (int, error) { return 12 * len(msg), nil }
