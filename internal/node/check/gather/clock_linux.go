// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/internal/node/check"
)

// clock asks the kernel, which whoever synchronises the clock has told (adjtimex(2)).
func clock() []check.Finding {
	state, err := unix.Adjtimex(&unix.Timex{})
	return []check.Finding{check.Clock(err == nil, state != unix.TIME_ERROR)}
}
