// SPDX-License-Identifier: Apache-2.0

// Package mistake writes the validation of a configuration as a list: errors.Join of what
// could be wrong reports all mistakes at once.
package mistake // import "github.com/gpu-collector/gpu-collector/internal/platform/mistake"

import "fmt"

// If returns the error of a key where a mistake was made, and nil otherwise.
func If(made bool, format string, args ...any) error {
	if !made {
		return nil
	}
	return fmt.Errorf(format, args...)
}
