// SPDX-License-Identifier: Apache-2.0

// Package platform has what a server needs besides its work: headers, permits, shares of
// bounds, state files, web guards, commands.
// Components and all other rooms call it. It must not know GPUs, slow nodes, or what a
// metric means.
// Its packages: admission, fairshare and memorybudget bound clients; serverguard and
// webguard bound servers; pushheaders names headers; statefile keeps state over a restart; distro
// and reload are commands.
package platform // import "github.com/gpu-collector/gpu-collector/internal/platform"
