// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

var window = regexp.MustCompile(`\[(\d+)ms\]`)

// perSecond is a server with so many samples a second. It includes the left end of a range, and
// refuses a query for more than a million samples.
type perSecond struct{ n int }

// RoundTrip implements http.RoundTripper.
func (s perSecond) RoundTrip(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	milliseconds, _ := strconv.ParseInt(window.FindStringSubmatch(form.Get("query"))[1], 10, 64)
	until, _ := strconv.ParseFloat(form.Get("time"), 64)
	to := int64(until * 1000)
	from := to - milliseconds
	w := httptest.NewRecorder()
	if milliseconds/1000*int64(s.n) > 1_000_000 {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprint(w, `{"status":"error","errorType":"execution","error":"query processing would load too many samples"}`)
		return w.Result(), nil
	}
	var values [][2]any
	for at := (from + 999) / 1000; at*1000 <= to; at++ {
		values = append(values, [2]any{at, strconv.FormatInt(at, 10)})
	}
	series, _ := json.Marshal(values)
	var list []string
	for i := range s.n {
		list = append(list, fmt.Sprintf(`{"metric":{"__name__":"hw_power_watts","host_name":"n%06d"},"values":%s}`, i, series))
	}
	_, _ = fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`, strings.Join(list, ","))
	return w.Result(), nil
}

// TestSlices: each sample comes once, the newest first, however many there are in a minute.
func TestSlices(t *testing.T) {
	end := time.Unix(1_790_000_000, 0)
	for n, length := range map[int]time.Duration{1: 10 * time.Hour, 1000: 3 * time.Minute, 20_000: 4 * time.Second} {
		seconds := int(length/time.Second) + 1
		ask := func(most int) (list []fleethistory.Sample, err error) {
			h, err := New(Config{Endpoint: "http://server", Client: &http.Client{Transport: perSecond{n}}, QueryTimeout: time.Minute, HostLabel: "host_name", MaxSamples: most})
			require.NoError(t, err)
			err = h.Samples(t.Context(), &fleethistory.Query{Start: end.Add(-length), End: end}, func(p *fleethistory.Sample) bool {
				list = append(list, *p)
				return true
			})
			return list, err
		}
		list, err := ask(n * seconds)
		require.NoError(t, err)
		require.Len(t, list, n*seconds)
		for i, p := range list {
			at := end.Unix() - int64(i/n)
			if want := (fleethistory.Sample{Node: fmt.Sprintf("n%06d", i%n), Metric: "hw.power", At: at * 1000, Value: float64(at)}); p != want {
				require.Equal(t, want, p)
			}
		}
		list, err = ask(n*seconds - 1)
		require.ErrorIs(t, err, fleethistory.ErrTooMuch)
		assert.Len(t, list, n*seconds-1)
	}
}
