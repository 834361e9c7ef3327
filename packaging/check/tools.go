// SPDX-License-Identifier: Apache-2.0

//go:build tools

package main

import (
	_ "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod" // bills of materials
)
