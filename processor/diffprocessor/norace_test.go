// SPDX-License-Identifier: Apache-2.0

//go:build !race

package diffprocessor

const raceEnabled = false
