// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

const (
	// ownPrefix is that of the figures of the endpoint itself.
	ownPrefix = "gpu_exposition_"
	// maxParts bounds the parts of one text.
	maxParts = 1 << 12
	// maxOwnClusters bounds the clusters of whose hidden series there is a figure each.
	maxOwnClusters = 100
	// otherClusters stands for the rest of them.
	otherClusters = "_other"
	// maxWait ends before Prometheus gives up, after 10 s (scrape_timeout).
	maxWait = 8 * time.Second
	// retryAfter is in seconds, about a scrape of a million series.
	retryAfter = "5"
)

// serve answers a scrape.
func (e *exposition) serve(w http.ResponseWriter, r *http.Request) {
	x, err := e.part(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	format := negotiate(r.Header)
	x.OpenMetrics = format.FormatType() == expfmt.TypeOpenMetrics
	w.Header().Set("Content-Type", string(format))
	w.Header().Add("Vary", "Accept") // so that a cache does not give one format for the other
	if r.Method == http.MethodHead {
		return
	}
	began := time.Now()
	var done lastvalue.Exposed
	if t := e.table.Load(); t != nil {
		done, err = x.Write(w, t.engine.Table, t.engine.Time())
	}
	if err == nil {
		err = e.appendOwn(w, format, x, figures(done, time.Since(began)))
	}
	if err != nil { // mostly a reader that is gone
		e.set.Logger.Debug("a scrape was not read to its end", zap.Error(err), zap.Int64("bytes", done.Bytes))
		panic(http.ErrAbortHandler) // so that no reader takes a part for the whole
	}
}

// inTurn answers a scrape once there is a slot, or refuses it. An idle reader keeps a slot
// until the server's `write_timeout`.
func (e *exposition) inTurn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), maxWait)
		defer cancel()
		if !e.turns.Do(ctx, webguard.Address(r), func() { next.ServeHTTP(w, r) }) {
			w.Header().Set("Retry-After", retryAfter)
			http.Error(w, fmt.Sprintf("as many scrapes are under way as `max_scrapes` of the exposition extension allows, %d, "+
				"or half of them for this address", e.cfg.MaxScrapes), http.StatusServiceUnavailable)
		}
	})
}

// part is what of the table is asked for.
func (e *exposition) part(query url.Values) (*lastvalue.Exposition, error) {
	x := &lastvalue.Exposition{Expiration: e.cfg.MetricExpiration, Attributes: e.cfg.ResourceAttributes, Reserved: []string{ownPrefix}}
	if e.cfg.DCGMNames {
		x.Reserved, x.More = append(x.Reserved, dcgmnames.Prefix), dcgmnames.Write
	}
	if query.Has("cluster") {
		cluster := query.Get("cluster")
		x.Cluster = &cluster
	}
	if !query.Has("shard") && !query.Has("of") {
		return x, nil
	}
	var errs [2]error
	x.Part, errs[0] = strconv.ParseUint(query.Get("shard"), 10, 64)
	x.Parts, errs[1] = strconv.ParseUint(query.Get("of"), 10, 64)
	if errors.Join(errs[:]...) != nil || x.Parts < 1 || x.Parts > maxParts || x.Part >= x.Parts {
		return nil, fmt.Errorf("`shard` is %q and `of` is %q: must be whole numbers, `of` from 1 to %d and `shard` from 0 to below that",
			query.Get("shard"), query.Get("of"), maxParts)
	}
	return x, nil
}

// negotiate chooses a format, without the protobuf that not every reader can decode, and without what
// is not acceptable: the library takes that for the last choice.
func negotiate(header http.Header) expfmt.Format {
	accepted := slices.DeleteFunc(strings.Split(strings.ToLower(strings.Join(header.Values("Accept"), ",")), ","), func(kind string) bool {
		_, params, _ := mime.ParseMediaType(kind)
		q, err := strconv.ParseFloat(params["q"], 64)
		return strings.Contains(kind, expfmt.ProtoType) || err == nil && q == 0
	})
	return expfmt.NegotiateIncludingOpenMetrics(http.Header{"Accept": {strings.Join(accepted, ",")}})
}

// appendOwn ends the text with the figures of its making and, unless it is another
// part than the first, those of the endpoint.
func (e *exposition) appendOwn(w io.Writer, format expfmt.Format, x *lastvalue.Exposition, own prometheus.Gatherer) error {
	gatherers := prometheus.Gatherers{own}
	if x.Cluster == nil && x.Part == 0 {
		gatherers = append(gatherers, e.registry)
	}
	families, err := gatherers.Gather()
	if err != nil {
		return err
	}
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return err
		}
	}
	if closer, ok := encoder.(expfmt.Closer); ok {
		return closer.Close() // OpenMetrics has an end
	}
	return nil
}

// figures are those of one text.
func figures(of lastvalue.Exposed, took time.Duration) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	register := promauto.With(prometheus.WrapRegistererWithPrefix(ownPrefix, registry))
	gauge := func(name, help string, value float64) {
		register.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}).Set(value)
	}
	gauge("series", "Series of the fleet in this text.", float64(of.Series))
	gauge("nodes", "Nodes that are not silent, of those in this text.", float64(of.Nodes))
	gauge("bytes", "Size of the fleet's series in this text, uncompressed.", float64(of.Bytes))
	gauge("duration_seconds", "Time that the fleet's series in this text took, to render them and to have them read.", took.Seconds())
	gauge("type_conflicts", "Families in this text that mix gauges and counters.", float64(of.Conflicts))
	hidden := register.NewGaugeVec(prometheus.GaugeOpts{
		Name: "hidden", Help: "Series, or labels of nodes, that are not in this text, by cluster and reason.",
	}, []string{"k8s_cluster_name", "reason"})
	sum := func(cluster string) (all int) {
		for _, count := range of.Hidden[cluster] {
			all += count
		}
		return all
	}
	clusters := slices.SortedFunc(maps.Keys(of.Hidden), func(a, b string) int {
		return cmp.Or(cmp.Compare(sum(b), sum(a)), strings.Compare(a, b))
	})
	for i, cluster := range clusters {
		label := strings.ToValidUTF8(cluster, "\uFFFD")
		if i >= maxOwnClusters {
			label = otherClusters
		}
		for reason, count := range of.Hidden[cluster] {
			if count > 0 {
				hidden.WithLabelValues(label, lastvalue.Hidden(reason).String()).Add(float64(count))
			}
		}
	}
	return registry
}
