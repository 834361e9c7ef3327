// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"encoding/json"
	"strings"
)

// JoinAttributes returns attributes as the one text that Sample has of them, a JSON object with
// sorted keys; nothing for none.
func JoinAttributes(attributes map[string]string) string {
	if len(attributes) == 0 {
		return ""
	}
	text, _ := json.Marshal(attributes) // texts can be marshalled
	return string(text)
}

// SplitAttributes returns the attributes that JoinAttributes put together.
func SplitAttributes(text string) (attributes map[string]string) {
	_ = json.Unmarshal([]byte(text), &attributes) // an empty text has none
	return attributes
}

// HasAttribute reports whether a text of JoinAttributes has an attribute.
func HasAttribute(text, key, value string) bool {
	pair := JoinAttributes(map[string]string{key: value})
	return strings.Contains(text, pair[1:len(pair)-1])
}
