// SPDX-License-Identifier: Apache-2.0

// Package verdict decides what is reported of a verdict: when an episode begins and ends,
// why the node is slow, and what needs a person.
// Detection, the `straggler` processor and the fleet view call it. It must not know how a
// loss was found, or pdata but in episode/otlp.
// Its packages: episode is the one form, and its words are all sentences; reason finds
// causes; attention orders what is open.
package verdict // import "github.com/gpu-collector/gpu-collector/internal/verdict"
