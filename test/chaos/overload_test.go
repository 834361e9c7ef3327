// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// permits of the shard's admission, so that ten times as much is what two cores
// can send.
const permits = 8

// TestOverload has senders push ten times as many reports at once as the shard
// has permits for, of the fleet's own cluster and of another one. They are
// refused and counted; the fleet's state arrives all the same once they are gone.
func TestOverload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{shard: []string{"\nextensions: {admission: {max_concurrent: 8}}\n"}})
	for _, who := range []string{"noisy", cluster} {
		t.Run("by "+who, func(t *testing.T) {
			load := newLoad(t, w.shard.grpc, who, 10*permits)
			before := mustScrape(t, w.shard.telemetry).sum("otelcol_extension_admission_refusals")
			w.suffer(func() { load.run(pick(10*time.Second, time.Minute)) })
			counted := mustScrape(t, w.shard.telemetry).sum("otelcol_extension_admission_refusals") - before
			t.Logf("%d taken, %d refused, %.0f counted", load.taken.Load(), load.refused.Load(), counted)
			require.Positive(t, load.refused.Load(), "it is an overload")
			assert.Positive(t, load.taken.Load(), "who has a permit gets in")
			assert.GreaterOrEqual(t, counted, float64(load.refused.Load()), "refusals are counted")
			assert.Zero(t, load.failed.Load(), "who is refused is told so")
			w.recovered(t)
		})
	}
}

// load is more pushes than the shard takes.
type load struct {
	client  pmetricotlp.GRPCClient
	cluster string
	reports []pmetric.Metrics

	taken, refused, failed atomic.Int64
}

// newLoad returns senders of a cluster. Their nodes have no name that the fleet
// has, and nothing that is compared.
func newLoad(t *testing.T, addr, cluster string, senders int) *load {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	l := &load{client: pmetricotlp.NewGRPCClient(conn), cluster: cluster}
	for range senders {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("service.name", "load")
		rm.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("test.load")
		points := m.SetEmptyGauge().DataPoints()
		for i := range 320 {
			p := points.AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(started))
			p.SetIntValue(int64(i))
			p.Attributes().PutInt("i", int64(i))
		}
		l.reports = append(l.reports, md)
	}
	return l
}

func (l *load) push(ctx context.Context, i int) {
	ctx = metadata.AppendToOutgoingContext(ctx, "gpu-cluster", l.cluster)
	_, err := l.client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(l.reports[i]))
	switch status.Code(err) {
	case codes.OK:
		l.taken.Add(1)
	case codes.ResourceExhausted:
		l.refused.Add(1)
	default:
		l.failed.Add(1)
	}
}

// run has all senders push, again at once when they are answered.
func (l *load) run(length time.Duration) {
	over := time.Now().Add(length)
	var all sync.WaitGroup
	for i := range l.reports {
		all.Go(func() {
			for time.Now().Before(over) {
				l.push(context.Background(), i)
			}
		})
	}
	all.Wait()
}
