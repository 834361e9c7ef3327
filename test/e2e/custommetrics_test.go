// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// metricsGroup is where a HorizontalPodAutoscaler asks for metrics of pods.
const metricsGroup = "/apis/custom.metrics.k8s.io/v1beta1"

// customMetrics answers for a metrics adapter: it scrapes the pods themselves at each
// question. The API server asks it, as an APIService says.
type customMetrics struct {
	api string // kubectl proxy's URL
	t   *testing.T
}

// metricsService has the API server pass the group on to this process. The Service is a
// name: an API server need not reach the addresses of Services.
const metricsService = `
apiVersion: v1
kind: Service
metadata: {name: custom-metrics, namespace: %[1]s}
spec: {type: ExternalName, externalName: %[2]q, ports: [{port: %[3]s}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: %[4]s
  service: {name: custom-metrics, namespace: %[1]s, port: %[3]s}
`

// serveCustomMetrics serves them to the cluster until the test ends.
func serveCustomMetrics(t *testing.T, address string) {
	t.Helper()
	addr, _ := launch(t, proxyLine, "proxy", "--port", "0")
	m := &customMetrics{api: "http://" + addr, t: t}
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	require.NoError(t, err)
	host := "custom-metrics." + namespace + ".svc"
	ca := newAuthority(t, "custom metrics")
	server := ca.issue(t, host, host)
	cert, err := tls.X509KeyPair(server.cert, server.key)
	require.NoError(t, err)
	s := httptest.NewUnstartedServer(m)
	require.NoError(t, s.Listener.Close())
	s.Listener = listener
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() {
		kubectl(t, "delete", "--ignore-not-found", "apiservice", "v1beta1.custom.metrics.k8s.io")
		kubectl(t, "delete", "--ignore-not-found", "service", "-n", namespace, "custom-metrics")
	})
	apply(t, fmt.Sprintf(metricsService, namespace, address, port, base64.StdEncoding.EncodeToString(ca.pem)))
	kubectl(t, "wait", "--for=condition=Available", "apiservice/v1beta1.custom.metrics.k8s.io", "--timeout=1m")
}

type metricValue struct {
	DescribedObject map[string]string `json:"describedObject"`
	MetricName      string            `json:"metricName"`
	Timestamp       time.Time         `json:"timestamp"`
	Value           string            `json:"value"`
}

func (m *customMetrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := m.answer(r)
	status := http.StatusOK
	if err != nil {
		status = http.StatusNotFound
		answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": err.Error(), "code": status}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // who asked may be gone
}

func (m *customMetrics) answer(r *http.Request) (any, error) {
	if r.URL.Path == metricsGroup {
		return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "custom.metrics.k8s.io/v1beta1", "resources": []any{
			map[string]any{"name": "pods/" + nodesReporting, "singularName": "", "namespaced": true, "kind": "MetricValueList", "verbs": []string{"get"}},
		}}, nil
	}
	space, metric, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, metricsGroup+"/namespaces/"), "/pods/*/")
	if !ok || metric != nodesReporting {
		return nil, fmt.Errorf("no metric at %s: must be %s of all pods", r.URL.Path, nodesReporting)
	}
	var pods struct{ Items []object }
	text, err := m.get("/api/v1/namespaces/" + space + "/pods?" + url.Values{"labelSelector": r.URL.Query()["labelSelector"]}.Encode())
	if err == nil {
		err = json.Unmarshal(text, &pods)
	}
	if err != nil {
		return nil, err
	}
	items := []metricValue{}
	for _, pod := range pods.Items {
		name := pod.Metadata.Name
		value, err := m.scrape(space, name, metric)
		if err != nil {
			continue // a pod that comes or goes; the autoscaler knows how to reckon without it
		}
		items = append(items, metricValue{map[string]string{"kind": "Pod", "apiVersion": "/v1", "namespace": space, "name": name}, metric, time.Now(), fmt.Sprintf("%.0f", value)})
	}
	return map[string]any{"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta1", "metadata": struct{}{}, "items": items}, nil
}

func (m *customMetrics) scrape(space, pod, metric string) (float64, error) {
	text, err := m.get("/api/v1/namespaces/" + space + "/pods/" + pod + ":8888/proxy/metrics")
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, series := range families[metric].GetMetric() {
		sum += series.GetGauge().GetValue()
	}
	return sum, nil
}

func (m *customMetrics) get(path string) ([]byte, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(m.api + path) //nolint:noctx // the timeout is the client's
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return text, err
}
