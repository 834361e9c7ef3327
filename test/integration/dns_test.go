// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"time"

	"google.golang.org/grpc/resolver/dns"
)

// gRPC asks for a name at most every 30 s, which no test has the time for.
func init() { dns.SetMinResolutionInterval(100 * time.Millisecond) }
