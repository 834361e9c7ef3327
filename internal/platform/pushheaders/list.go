// SPDX-License-Identifier: Apache-2.0

package pushheaders

import (
	"errors"
	"fmt"

	"github.com/dunglas/httpsfv"
)

// EncodeGroups writes peer group names as a structured-field list of strings
// (RFC 9651), the value of a gpu-group request header. Names beyond MaxGroups
// and names that are not ValidName are left out.
func EncodeGroups(groups []string) (string, error) {
	list := make(httpsfv.List, 0, min(len(groups), MaxGroups))
	for _, g := range groups {
		if len(list) == MaxGroups {
			break
		}
		if ValidName(g) {
			list = append(list, httpsfv.NewItem(g))
		}
	}
	if len(list) == 0 {
		return "", nil
	}
	return httpsfv.Marshal(list)
}

// ParseGroups reads a gpu-group request header. More than MaxGroups members
// is an error: the sender would wait for an answer that never comes.
func ParseGroups(header []string) ([]string, error) {
	list, err := ParseList(header)
	if err != nil {
		return nil, err
	}
	if len(list) > MaxGroups {
		return nil, fmt.Errorf("%d peer groups asked for, at most %d may be", len(list), MaxGroups)
	}
	groups := make([]string, 0, len(list))
	for _, m := range list {
		name, err := MemberName(m)
		if err != nil {
			return nil, err
		}
		groups = append(groups, name)
	}
	return groups, nil
}

// MemberName reads a member that is a peer group's name.
func MemberName(m httpsfv.Member) (string, error) {
	item, ok := m.(httpsfv.Item)
	if !ok {
		return "", errors.New("a member is an inner list, a string is wanted")
	}
	name, ok := item.Value.(string)
	if !ok {
		return "", fmt.Errorf("member %v is not a string", item.Value)
	}
	if !ValidName(name) {
		return "", fmt.Errorf("peer group %q is not 1 to %d printable ASCII characters", Clip(name), MaxNameLength)
	}
	return name, nil
}

// ParseList reads a header that is a structured-field list (RFC 9651), of at
// most 8 KiB.
func ParseList(header []string) (httpsfv.List, error) {
	total := 0
	for _, h := range header {
		total += len(h)
	}
	if total > MaxHeaderBytes {
		return nil, fmt.Errorf("%d bytes, at most %d are read", total, MaxHeaderBytes)
	}
	list, err := httpsfv.UnmarshalList(header)
	if err != nil {
		return nil, fmt.Errorf("not a structured-field list: %w", err)
	}
	return list, nil
}

// Clip keeps hostile input out of logs at full length.
func Clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
