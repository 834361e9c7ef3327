// SPDX-License-Identifier: Apache-2.0

package fleetapi

import "embed"

// docs is the page that renders /openapi.json. It loads nothing from elsewhere.
//
//go:embed docs
var docs embed.FS
