// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
)

// optional distinguishes an absent parameter from its zero value.
type optional[T any] struct {
	Value T
	Set   bool
}

// Schema implements huma.SchemaProvider.
func (o optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeOf(o.Value))
}

// Receiver implements huma.ParamWrapper.
func (o *optional[T]) Receiver() reflect.Value { return reflect.ValueOf(o).Elem().Field(0) }

// OnParamSet implements huma.ParamReactor.
func (o *optional[T]) OnParamSet(set bool, _ any) { o.Set = set }

func (o *optional[T]) pointer() *T {
	if !o.Set {
		return nil
	}
	return &o.Value
}

// PageParams select a page.
type PageParams struct {
	Page  int `query:"page" minimum:"1" maximum:"1000000" default:"1" doc:"Number of the page, from 1"`
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Most items on a page"`
}

func (p *PageParams) offset() int { return (p.Page - 1) * p.Limit }

func (p *PageParams) page(n, total int) Page {
	return Page{Page: p.Page, Limit: p.Limit, Total: total, More: p.offset()+n < total}
}

// ListParams select a page of the fleet.
type ListParams struct {
	PageParams
	After string `query:"after" maxLength:"4096" doc:"The field next of the page before, in place of page"`
}

// pageOf returns the page of a list that is sorted by its keys. The cursor is the key of a page's
// last item, so that items which come and go move no page.
func pageOf[T, O any](list iter.Seq[T], p *ListParams, key func(T) []string, convert func(T) O) (Page, []O, error) {
	var after []string
	if p.After != "" {
		text, err := base64.RawURLEncoding.DecodeString(p.After)
		if err != nil || json.Unmarshal(text, &after) != nil || after == nil {
			return Page{}, nil, badParam("query.after", p.After, "must be the `next` of an answer")
		}
		if p.Page > 1 {
			return Page{}, nil, badParam("query.after", p.After, "cannot be given with `page`")
		}
	}
	page, out := Page{Page: p.Page, Limit: p.Limit}, []O{}
	var last T
	for v := range list {
		page.Total++
		switch {
		case page.Total <= p.offset() || after != nil && slices.Compare(key(v), after) <= 0:
		case len(out) == p.Limit:
			page.More = true
		default:
			last, out = v, append(out, convert(v))
		}
	}
	if page.More {
		text, _ := json.Marshal(key(last)) // strings can be marshalled
		page.Next = base64.RawURLEncoding.EncodeToString(text)
	}
	return page, out, nil
}

// descending returns a text for a key that sorts numbers, the greatest first.
func descending(x float64) string {
	bits := math.Float64bits(x)
	if x < 0 {
		bits = ^bits
	} else {
		bits |= 1 << 63
	}
	return fmt.Sprintf("%016x", ^bits)
}

// ClusterParams select clusters.
type ClusterParams struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
}

// NodeParams select nodes.
type NodeParams struct {
	Cluster   []string       `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Node      []string       `query:"node,explode" maxItems:"1000" doc:"Only nodes of these names; abc* stands for all names that begin with abc"`
	Group     []string       `query:"group,explode" maxItems:"100" doc:"Only of these peer groups"`
	State     []string       `query:"state,explode" enum:"active,idle,calibrating,missing" doc:"Only nodes in one of these states"`
	Health    []string       `query:"health,explode" enum:"unknown,healthy,degraded,unhealthy" doc:"Only nodes whose worst GPU is in one of these states"`
	Straggler optional[bool] `query:"straggler" doc:"Only stragglers, or only others. A missing node is none, whatever it was"`
	Job       []string       `query:"job,explode" maxItems:"100" doc:"Only nodes that run one of these jobs or pods"`
	MinUtil   float64        `query:"min_utilization" minimum:"0" maximum:"1" doc:"Least mean utilisation of the node's GPUs"`
}

func (p *NodeParams) filter() fleetstate.Filter {
	return fleetstate.Filter{
		Clusters: p.Cluster, Nodes: p.Node, Groups: p.Group, States: p.State, Health: p.Health,
		Straggler: p.Straggler.pointer(), Jobs: p.Job, MinUtilization: p.MinUtil,
	}
}

// knownParams refuses query parameters that the operation does not have, most of them misspelt,
// and numbers that are not finite: a schema's bounds let NaN pass, and JSON has no Inf.
//
// It also takes other names of parameters (see aliases), reads times, and refuses unknown
// clusters. It splits lists itself: the library cannot read a comma in a value.
func (a *API) knownParams(ctx huma.Context, next func(huma.Context)) {
	var errs []error
	wrong := func(location string, value any, text string) {
		errs = append(errs, &huma.ErrorDetail{Location: location, Value: value, Message: text})
	}
	u := ctx.URL()
	// URL.Query would leave out what it cannot read, and so select more.
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		wrong("query", u.RawQuery, err.Error()+": parameters are joined by &, and other bytes written as % and two hexadecimal digits")
	}
	var names, lists []string
	for _, p := range ctx.Operation().Parameters {
		if p.In != "query" {
			continue
		}
		names = append(names, p.Name)
		switch p.Schema.Type {
		case huma.TypeArray:
			lists = append(lists, p.Name)
		case huma.TypeNumber:
			if text := query.Get(p.Name); !number(text) {
				wrong("query."+p.Name, text, "must be a finite number")
			}
		}
	}
	errs = append(append(errs, times(query, a.o.Now())...), rename(query, names)...)
	for name, values := range query {
		if !slices.Contains(names, name) {
			wrong("query."+name, nil, "no such parameter, "+choice(names))
		} else if len(values) > 1 {
			wrong("query."+name, nil, "given "+strconv.Itoa(len(values))+" times, give it once, several values joined by commas")
		}
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		_ = huma.WriteErr(a.huma, ctx, http.StatusUnprocessableEntity, "validation failed", errs...)
		return
	}
	scalars := maps.Clone(query)
	for _, name := range lists {
		if query.Has(name) {
			query[name] = splitList(query.Get(name))
		}
	}
	if err := a.unknownCluster(ctx, slices.DeleteFunc(slices.Clone(query["cluster"]), func(c string) bool { return c == "" })); err != nil {
		_ = huma.WriteErr(a.huma, ctx, http.StatusNotFound, err.Error())
		return
	}
	u.RawQuery = query.Encode()
	next(&ownContext{ctx, u, scalars})
}

// ownContext has the parameters by their own names, and each value of a list as a parameter:
// so the library reads lists that are tagged `explode`.
type ownContext struct {
	innerContext
	url   url.URL
	query url.Values // lists are not split here
}

type innerContext = huma.Context

// URL implements huma.Context.
func (c *ownContext) URL() url.URL { return c.url }

// Query implements huma.Context.
func (c *ownContext) Query(name string) string { return c.query.Get(name) }

// Unwrap leads the adapter to its own context.
func (c *ownContext) Unwrap() huma.Context { return c.innerContext }

// splitList splits a list at its commas. `\,` is a comma of a value and `\\` a
// backslash.
func splitList(text string) []string {
	var list []string
	var value strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && (text[i+1] == ',' || text[i+1] == '\\'):
			i++
			value.WriteByte(text[i])
		case c == ',':
			list = append(list, value.String())
			value.Reset()
		default:
			value.WriteByte(c)
		}
	}
	return append(list, value.String())
}

// number is false for an infinite number and NaN only. The schema refuses other texts.
func number(text string) bool {
	v, err := strconv.ParseFloat(text, 64)
	return !math.IsNaN(v) && !math.IsInf(v, 0) || errors.Is(err, strconv.ErrSyntax)
}

func choice(names []string) string {
	if len(names) == 0 {
		return "this operation has none"
	}
	return "must be one of " + strings.Join(names, ", ")
}

// badParam is an error about one parameter.
func badParam(location string, value any, format string, args ...any) error {
	return huma.Error422UnprocessableEntity("validation failed", &huma.ErrorDetail{
		Location: location, Value: value, Message: fmt.Sprintf(format, args...),
	})
}
