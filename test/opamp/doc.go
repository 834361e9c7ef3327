// SPDX-License-Identifier: Apache-2.0

// Package opamp is the proof that a Collector with this project's components
// and contrib's OpAMP extension does what each of the extension's keys says.
// run.sh builds that Collector and runs the tests. It is a module of its own:
// no other part of the project needs the protocol.
package opamp // import "github.com/gpu-collector/gpu-collector/test/opamp"
