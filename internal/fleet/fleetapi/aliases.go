// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// aliases are other names of parameters, as telemetry pipelines for GPUs use them. Of several
// targets the operation's counts.
var aliases = map[string][]string{
	"cluster_id": {"cluster"},
	"host_id":    {"host", "node"},
	"node":       {"host"},
	"names":      {"node"},
	"gpu_id":     {"gpu"},
	"min_usage":  {"min_utilization"},
	"page_size":  {"limit"},
	"start_time": {"since"},
	"time_range": {"since"}, // once it is a time
	"end_time":   {"until"},
}

// aliasText describes the aliases in the document.
const aliasText = "Other names of parameters are taken too: `cluster_id` for `cluster`, `host_id` for `host` or `node`, `node` for `host`, `names` for `node`, `min_usage` for `min_utilization`, `gpu_id` for `gpu`, " +
	"`page_size` for `limit`, `start_time` for `since`, `end_time` for `until`. `time_range` is how long before `until` it begins. " +
	"`since` and `until` are times after RFC 3339, or so long ago, such as `30m`, `24h` or `7d`."

// rename moves the values of aliases to the operation's own names.
func rename(query url.Values, names []string) (errs []error) {
	for alias, targets := range aliases {
		i := slices.IndexFunc(targets, func(t string) bool { return slices.Contains(names, t) })
		if i < 0 || !query.Has(alias) || slices.Contains(names, alias) {
			continue // unknown here, as any other name
		}
		if own := targets[i]; query.Has(own) {
			errs = append(errs, &huma.ErrorDetail{Location: "query." + alias, Message: "is another name of `" + own + "`: give one of them"})
		} else {
			query[own] = query[alias]
		}
		delete(query, alias)
	}
	if by := query["group_by"]; len(by) == 1 && aliases[by[0]] != nil {
		query.Set("group_by", aliases[by[0]][0])
	}
	return errs
}

// parseMoment reads a time after RFC 3339, or how long ago it was.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), nil
	}
	ago, unit := text, time.Duration(1)
	if days, inDays := strings.CutSuffix(text, "d"); inDays { // time.ParseDuration knows no days
		ago, unit = days+"h", 24
	}
	d, err := time.ParseDuration(ago)
	if err != nil || d <= 0 || d > maxRange/unit {
		return time.Time{}, fmt.Errorf("must be a time after RFC 3339, such as %s, or so long ago, at most 3650d, such as 30m, 24h or 7d", now.UTC().Format(time.RFC3339))
	}
	return now.Add(-d * unit).UTC(), nil
}

// times reads the parameters that are times, and writes them as the library reads them.
// time_range is relative to the end.
func times(query url.Values, now time.Time) (errs []error) {
	from := now
	for _, name := range []string{"since", "start_time", "until", "end_time", "time_range"} {
		values := query[name]
		switch {
		case len(values) == 1 && values[0] == "":
			delete(query, name)
			continue
		case len(values) != 1:
			continue
		}
		at, err := parseMoment(values[0], from)
		if err != nil {
			errs = append(errs, &huma.ErrorDetail{Location: "query." + name, Value: values[0], Message: err.Error()})
			continue
		}
		query.Set(name, at.Format(time.RFC3339Nano))
		if name == "until" || name == "end_time" {
			from = at
		}
	}
	return errs
}

// unknownCluster is the error of a request for an unknown cluster, nil for none. Requests to
// the history are not checked: it knows clusters that the view has forgotten.
func (a *API) unknownCluster(ctx huma.Context, clusters []string) error {
	if len(clusters) == 0 || !slices.Contains(ctx.Operation().Tags, tagFleet) {
		return nil
	}
	known := a.o.Store.Clusters()
	if i := slices.IndexFunc(clusters, func(c string) bool { return !slices.Contains(known, c) }); i >= 0 {
		return noCluster(clusters[i], known)
	}
	return nil
}

func noCluster(name string, known []string) huma.StatusError {
	text := fmt.Sprintf("no cluster %q is known", name)
	switch {
	case len(known) == 0:
		text += ": no node has reported to this gateway yet"
	case len(known) > maxListed:
		text += fmt.Sprintf(", the %d known ones begin with %s", len(known), strings.Join(known[:maxListed], ", "))
	default:
		text += ", known are " + strings.Join(known, ", ")
	}
	return huma.Error404NotFound(text)
}

// maxListed bounds the names in an error.
const maxListed = 20

// someCluster is the error of an empty answer from the history whose cluster is unknown.
func (a *API) someCluster(clusters []string, found int) error {
	known := a.o.Store.Clusters()
	if found > 0 || len(clusters) == 0 || slices.ContainsFunc(clusters, func(c string) bool { return slices.Contains(known, c) }) {
		return nil
	}
	return noCluster(clusters[0], known)
}

// swaggerPath is the documentation's path in other services.
const swaggerPath = "/swagger/index.html"

// registerOtherNames serves paths that clients of other services know.
func (a *API) registerOtherNames() {
	a.mux.HandleFunc("GET "+swaggerPath, func(w http.ResponseWriter, _ *http.Request) {
		// Relative, so that it also works below a proxy's prefix.
		w.Header().Set("Location", "../docs/")
		w.WriteHeader(http.StatusFound)
	})
	a.mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		r2 := r.Clone(r.Context())
		r2.URL.Path = healthPath
		a.mux.ServeHTTP(w, r2)
	})
	a.mux.HandleFunc("GET "+indexPath+"{$}", a.index)
	a.mux.HandleFunc("GET "+strings.TrimSuffix(indexPath, "/"), a.index)
}
