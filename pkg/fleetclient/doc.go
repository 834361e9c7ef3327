// SPDX-License-Identifier: Apache-2.0

// Package fleetclient is the client of the fleet view's API: one method per
// operation, generated from the API's OpenAPI document, and a Cache for who asks
// often and decides locally.
package fleetclient // import "github.com/gpu-collector/gpu-collector/pkg/fleetclient"
