// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// aliases are other names of parameters, those of telemetry pipelines for GPUs; `node` is taken by all. Of several
// targets the operation's counts.
var aliases = map[string][]string{
	"cluster_id": {"cluster"},
	"host_id":    {"host", "node", "names"},
	"node":       {"host", "names"},
	"gpu_id":     {"gpu"},
	"page_size":  {"limit"},
	"start_time": {"since"},
	"end_time":   {"until"},
}

// aliasText says in the document which other names are taken.
const aliasText = "Other names of parameters are taken too: `cluster_id` for `cluster`, `host_id` and `node` for `host` or `names`, `gpu_id` for `gpu`, " +
	"`page_size` for `limit`, `start_time` for `since`, `end_time` for `until`. `time_range` is how long before `until` it begins. " +
	"`since` and `until` are times after RFC 3339, or so long ago, such as `30m`, `24h` or `7d`."

// rename moves the values of aliases to the operation's own names. sent has the alias that
// was sent, by the operation's name.
func rename(query url.Values, names []string) (sent map[string]string, errs []error) {
	sent = map[string]string{}
	for alias, targets := range aliases {
		values, given := query[alias]
		if !given || slices.Contains(names, alias) {
			continue
		}
		i := slices.IndexFunc(targets, func(t string) bool { return slices.Contains(names, t) })
		if i < 0 {
			continue // unknown here, as any other name
		}
		delete(query, alias)
		if _, twice := query[targets[i]]; twice {
			text := "is another name of `" + targets[i] + "`"
			if other := sent[targets[i]]; other != "" {
				text += ", as is `" + other + "`"
			}
			errs = append(errs, &huma.ErrorDetail{Location: "query." + alias, Message: text + ": give one of them"})
			continue
		}
		query[targets[i]], sent[targets[i]] = values, alias
	}
	if by := query["group_by"]; len(by) == 1 && aliases[by[0]] != nil {
		query.Set("group_by", aliases[by[0]][0])
	}
	return sent, errs
}

// moments are the parameters that are times. The last is how long before the end it begins.
var moments = []string{"until", "since", "time_range"}

// parseMoment reads a time after RFC 3339, or how long ago it was. Go's own message would
// show its layout.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at.UTC(), nil
	}
	ago, err := parseRange(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("must be a time after RFC 3339, such as %s, or so long ago, at most 3650d, such as 30m, 24h or 7d", now.UTC().Format(time.RFC3339))
	}
	return now.Add(-ago).UTC(), nil
}

// times reads the parameters that are times, and writes them as the library reads them.
func times(query url.Values, names []string, sent map[string]string, now time.Time) (errs []error) {
	end := now
	for _, name := range moments {
		values, to, from := query[name], name, now
		if name == "time_range" {
			to, from = "since", end
		}
		if len(values) != 1 || !slices.Contains(names, to) {
			continue
		}
		if name != to {
			delete(query, name)
			if query.Has(to) {
				errs = append(errs, &huma.ErrorDetail{Location: "query." + name, Message: "says when it begins, as `" + cmp.Or(sent[to], to) + "` does: give one of them"})
				continue
			}
		}
		if values[0] == "" {
			delete(query, name)
			continue
		}
		at, err := parseMoment(values[0], from)
		if err != nil {
			errs = append(errs, &huma.ErrorDetail{Location: "query." + cmp.Or(sent[name], name), Value: values[0], Message: err.Error()})
			continue
		}
		if query.Set(to, at.Format(time.RFC3339Nano)); name == "until" {
			end = at
		}
	}
	return errs
}

// unknownCluster is the error of a request that names an unknown cluster; nil for none. The history knows clusters that the view has forgotten.
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
	case len(known) > maxTold:
		text += fmt.Sprintf(", the %d known ones begin with %s", len(known), strings.Join(known[:maxTold], ", "))
	default:
		text += ", known are " + strings.Join(known, ", ")
	}
	return huma.Error404NotFound(text)
}

// maxTold bounds the names in an error.
const maxTold = 20

// someCluster is the error of a question about the past whose answer is empty because its
// cluster is unknown.
func (a *API) someCluster(clusters []string, found int) error {
	known := a.o.Store.Clusters()
	if found > 0 || len(clusters) == 0 || slices.ContainsFunc(clusters, func(c string) bool { return slices.Contains(known, c) }) {
		return nil
	}
	return noCluster(clusters[0], known)
}

// swaggerPath is where other services have the reader of their document.
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
