// SPDX-License-Identifier: Apache-2.0

// Package page writes what is generated into pages that people wrote.
package page // import "github.com/gpu-collector/gpu-collector/tools/page"

import (
	"fmt"
	"os"
	"strings"
)

// Insert replaces the text between two marks of a page.
func Insert(file, begin, text, end string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(page), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return fmt.Errorf("%s has no part between %q and %q: put them where the text belongs", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+text+end+after), 0o644)
}
