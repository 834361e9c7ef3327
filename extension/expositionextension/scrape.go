// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
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
	began, out := time.Now(), &counter{to: w}
	done, err := e.write(out, x)
	if err == nil {
		err = e.appendOwn(w, format, x, &own{done, out.bytes, time.Since(began)})
	}
	if err != nil { // mostly one who went away
		e.set.Logger.Debug("a scrape was not read to its end", zap.Error(err), zap.Int64("bytes", out.bytes))
		panic(http.ErrAbortHandler) // so that nobody takes a part for the whole
	}
}

// refuse answers a scrape that got no turn.
func (e *exposition) refuse(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", retryAfter)
	http.Error(w, fmt.Sprintf("as many scrapes are under way as `max_scrapes` of the exposition extension allows, %d, or half of them for this address", e.cfg.MaxScrapes), http.StatusServiceUnavailable)
}

// part is what of the table is asked for.
func (e *exposition) part(query url.Values) (*lastvalue.Exposition, error) {
	x := &lastvalue.Exposition{Expiration: e.cfg.MetricExpiration, Attributes: e.cfg.ResourceAttributes, Reserved: ownPrefix, DCGM: e.cfg.DCGMNames}
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

// write writes the table that is registered, if one is.
func (e *exposition) write(w io.Writer, x *lastvalue.Exposition) (lastvalue.Exposed, error) {
	e.mu.Lock()
	engine := e.table.engine
	e.mu.Unlock()
	if engine == nil {
		return lastvalue.Exposed{}, nil
	}
	return x.Write(w, engine.Table, engine.Time())
}

// negotiate chooses a format, without the protobuf that not everybody can do.
func negotiate(header http.Header) expfmt.Format {
	accepted := slices.DeleteFunc(strings.Split(strings.Join(header.Values("Accept"), ","), ","), func(kind string) bool {
		return strings.Contains(kind, expfmt.ProtoType)
	})
	return expfmt.NegotiateIncludingOpenMetrics(http.Header{"Accept": {strings.Join(accepted, ",")}})
}

// counter counts what is written.
type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err
}

// own are the figures of one text, which it ends with.
type own struct {
	lastvalue.Exposed
	bytes int64
	took  time.Duration
}

// appendOwn ends the text with the figures of its making and, unless it is another
// part than the first, those of the endpoint.
func (e *exposition) appendOwn(w io.Writer, format expfmt.Format, x *lastvalue.Exposition, o *own) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(o)
	gatherers := prometheus.Gatherers{registry}
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

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(ownPrefix+name, help, labels, nil)
}

var (
	seriesDesc    = desc("series", "Series of the fleet in this text.")
	nodesDesc     = desc("nodes", "Nodes that are not silent, of those in this text.")
	bytesDesc     = desc("bytes", "Size of the fleet's series in this text, uncompressed.")
	durationDesc  = desc("duration_seconds", "Time that the fleet's series in this text took, to render them and to have them read.")
	conflictsDesc = desc("type_conflicts", "Families in this text that mix gauges and counters.")
	hiddenDesc    = desc("hidden", "Series, or labels of nodes, that are not in this text, by cluster and reason.", "k8s_cluster_name", "reason")
)

// Describe implements prometheus.Collector.
func (o *own) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(o, to) }

// Collect implements prometheus.Collector.
func (o *own) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	gauge(seriesDesc, float64(o.Series))
	gauge(nodesDesc, float64(o.Nodes))
	gauge(bytesDesc, float64(o.bytes))
	gauge(durationDesc, o.took.Seconds())
	gauge(conflictsDesc, float64(o.Conflicts))
	sums, counts := map[string]int{}, map[[2]string]int{}
	for cluster, hidden := range o.Hidden {
		for _, count := range hidden {
			sums[cluster] += count
		}
	}
	clusters := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a, b))
	})
	named := map[string]bool{}
	for _, cluster := range clusters[:min(len(clusters), maxOwnClusters)] {
		named[cluster] = true
	}
	for cluster, hidden := range o.Hidden {
		if !named[cluster] {
			cluster = otherClusters
		}
		for reason, count := range hidden {
			counts[[2]string{strings.ToValidUTF8(cluster, "\uFFFD"), lastvalue.Hidden(reason).String()}] += count
		}
	}
	for labels, count := range counts {
		if count > 0 {
			gauge(hiddenDesc, float64(count), labels[:]...)
		}
	}
}
