// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
)

// unlistedOTLP is an `otlp` of an overlay of former versions, beside a `fleet_otlp`. Nothing would
// read its tls and auth.
func unlistedOTLP(conf *confmap.Conf, names service) error {
	var listed []string
	for _, p := range names.Pipelines {
		for _, id := range p["receivers"] {
			listed = append(listed, id.String())
		}
	}
	if !conf.IsSet("receivers::otlp") || slices.Contains(listed, "otlp") || !slices.Contains(listed, "fleet_otlp") {
		return nil
	}
	return errors.New("`receivers` has \"otlp\", which no pipeline lists: give its settings to `fleet_otlp`, see docs/upgrading.md")
}

// wrongTables are the keys `table` that name no exposition of the service. The start would end
// at the first, and the process with it.
func wrongTables(used []Setup, names service) (errs []error) {
	var tables []string
	for _, id := range names.Extensions {
		if id.Type().String() == "exposition" {
			tables = append(tables, id.String())
		}
	}
	for _, u := range used {
		var id component.ID
		table, _ := u.whole["table"].(string)
		if kind := u.ID.Type().String(); kind != "diff" && kind != "fleet_otlp" || id.UnmarshalText([]byte(table)) != nil || slices.Contains(tables, id.String()) {
			continue // The Collector checks names.
		}
		key := fmt.Sprintf("%s::%s::table", u.Section, u.ID)
		errs = append(errs, hostextension.Wrong(key, "exposition", id, slices.Contains(names.Extensions, id), tables))
	}
	return errs
}
