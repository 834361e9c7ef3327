// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package gather

import "github.com/gpu-collector/gpu-collector/internal/check"

func clock() *check.Clock { return &check.Clock{} }
