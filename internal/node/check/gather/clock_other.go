// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gather

import "github.com/gpu-collector/gpu-collector/internal/node/check"

func clock() []check.Finding { return []check.Finding{check.Clock(false, false)} }
