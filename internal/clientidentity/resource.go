// SPDX-License-Identifier: Apache-2.0

package clientidentity

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// ForeignError is a name that a resource gives itself and that is not its client's.
type ForeignError struct{ Attribute, Value, Own string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("`%s` is %q, which is not the client's own: must be %q", e.Attribute, e.Value, e.Own)
}

// names yields the attributes in which a resource names its cluster and node, with the
// client's own names. On Kubernetes host.name is often a pod's: that is no claim.
func (id Identity) names(has func(key string) bool, yield func(key, own string, claim bool)) {
	if bound(id.Cluster) {
		yield(identity.Cluster, id.Cluster, true)
	}
	if bound(id.Node) {
		claim := identity.Claim(has)
		yield(claim, id.Node, true)
		if claim != identity.Host {
			yield(identity.Host, id.Node, false)
		}
	}
}

func bound(name string) bool { return name != "" && name != Any }

// Owns reports whether Settle would leave a resource as it is. Count returns how often the
// resource has an attribute, and how often as that text.
func (id Identity) Owns(count func(key, text string) (all, same int)) bool {
	has := func(key string) bool { all, _ := count(key, ""); return all > 0 }
	owns := true
	id.names(has, func(key, own string, _ bool) {
		all, same := count(key, own)
		owns = owns && all == 1 && same == 1
	})
	return owns
}

// Settle writes the client's own names into a resource, and returns the first foreign name
// that it had. A resource that names nobody is its client's.
func (id Identity) Settle(attrs pcommon.Map) (foreign *ForeignError) {
	has := func(key string) bool { _, ok := attrs.Get(key); return ok }
	id.names(has, func(key, own string, claim bool) {
		if other := put(attrs, key, own); claim && foreign == nil {
			foreign = other
		}
	})
	return foreign
}

// put leaves one attribute of a name, and returns what else it was. On the wire there may
// be several. Some readers take the first, others the last.
func put(attrs pcommon.Map, name, own string) (other *ForeignError) {
	n, plain := 0, true
	for k, v := range attrs.All() {
		if k != name {
			continue
		}
		n++
		plain = v.Type() == pcommon.ValueTypeStr
		if other == nil && metricreading.Text(v) != own {
			text := v.AsString()
			other = &ForeignError{name, text[:min(len(text), maxShown)], own}
		}
	}
	if n == 1 && plain && other == nil {
		return nil
	}
	if n > 1 {
		attrs.RemoveIf(func(k string, _ pcommon.Value) bool { return k == name })
	}
	attrs.PutStr(name, own)
	return other
}

// maxShown is how much of a foreign name an error repeats.
const maxShown = 64
