// SPDX-License-Identifier: Apache-2.0

// Package hostile does to the real binary, with the configurations that ship,
// what broken and malicious senders do, and measures what it costs the others.
// `make hostile` runs it.
package hostile // import "github.com/gpu-collector/gpu-collector/test/hostile"
