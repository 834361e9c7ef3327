// SPDX-License-Identifier: Apache-2.0

// Package chaos does to real collectors what happens to clusters: it kills
// them, cuts and slows the links between them, fills the disk, sets clocks
// wrong, lets certificates expire, and replaces the binary under way. After
// each fault the gateway's state has to be the nodes' again, nobody may have
// been taken for a straggler, memory has to be back, and no push may have waited
// for what is behind its agent. `make chaos` runs it, `make chaos SHORT=1` the
// short form. docs/chaos.md says in words what holds.
package chaos // import "github.com/gpu-collector/gpu-collector/test/chaos"
