// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// postableAlert is as Alertmanager's API documents it (api/v2/openapi.yaml, postableAlert).
// Its labels and times are then those of Prometheus' model.Alert, which Alertmanager's own
// alert embeds.
type postableAlert struct {
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"`
	GeneratorURL string            `json:"generatorURL"`
}

// valid is Alertmanager's check: names and values of labels, and the times.
func (a *postableAlert) valid() error {
	m := model.Alert{Labels: model.LabelSet{}, Annotations: model.LabelSet{}, StartsAt: a.StartsAt, EndsAt: a.EndsAt}
	for k, v := range a.Labels {
		if !model.LegacyValidation.IsValidLabelName(k) || v == "" { // an empty value is no label there
			return fmt.Errorf("label %q", k)
		}
		m.Labels[model.LabelName(k)] = model.LabelValue(v)
	}
	for k, v := range a.Annotations {
		m.Annotations[model.LabelName(k)] = model.LabelValue(v)
	}
	return m.Validate()
}

// manager takes alerts as an Alertmanager does, and refuses what it would refuse.
type manager struct {
	t *testing.T
	*httptest.Server
	alerts    []postableAlert
	signature string
	body      []byte
	answer    int
}

func newManager(t *testing.T) *manager {
	m := &manager{t: t, answer: http.StatusOK}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v2/alerts" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			http.Error(w, "neither the path nor the type", http.StatusNotFound)
			return
		}
		m.body, _ = io.ReadAll(r.Body)
		d := json.NewDecoder(strings.NewReader(string(m.body)))
		d.DisallowUnknownFields()
		m.alerts = nil
		if err := d.Decode(&m.alerts); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		for i := range m.alerts {
			if err := m.alerts[i].valid(); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		m.signature = r.Header.Get(SignatureHeader)
		if m.answer != http.StatusOK {
			http.Error(w, "on demand", m.answer)
		}
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *manager) driver(secret string) *Driver {
	return New(m.Client(), m.URL+"/api/v2/alerts", "prod", secret, func() time.Time { return now })
}

func intent(state repair.State) *repair.Intent {
	return &repair.Intent{ID: "c1/notify/0/" + string(state), Step: repair.StepNotify, State: state, Rule: repair.RuleOnset, Case: repair.Case{ID: "c1", Node: "n1", GPU: "GPU-1", State: state}}
}

// TestAnAlertmanagerTakesIt: one alert per node, whose labels stay the same until it ends.
func TestAnAlertmanagerTakesIt(t *testing.T) {
	m := newManager(t)
	d := m.driver("")
	labels := map[string]string{"alertname": "GpuNodeRepair", "cluster": "prod", "node": "n1", "case": "c1"}
	for _, tc := range []struct {
		state repair.State
		ends  time.Time
	}{{repair.Suspect, now.Add(repeated)}, {repair.KeptOff, now.Add(repeated)}, {repair.Healthy, now}} {
		r := d.Do(t.Context(), intent(tc.state), false)
		require.Equal(t, repair.Taken, r.Outcome, r.Text)
		require.Len(t, m.alerts, 1)
		a := m.alerts[0]
		assert.Equal(t, labels, a.Labels)
		assert.Equal(t, string(tc.state), a.Annotations["state"])
		assert.Equal(t, "GPU-1", a.Annotations["gpu"])
		assert.NotEmpty(t, a.Annotations["summary"])
		assert.True(t, tc.ends.Equal(a.EndsAt), "%s", a.EndsAt)
		assert.Empty(t, m.signature)
	}
	r := d.Do(t.Context(), &repair.Intent{ID: "breaker/1/notify", Step: repair.StepNotify, Rule: repair.RulePerHour}, false)
	require.Equal(t, repair.Taken, r.Outcome, r.Text)
	assert.Equal(t, map[string]string{"alertname": "GpuActionsBreakerOpen", "cluster": "prod"}, m.alerts[0].Labels)
	assert.Contains(t, m.alerts[0].Annotations["summary"], "max_per_hour")
	assert.True(t, now.Add(repeated).Equal(m.alerts[0].EndsAt))
	r = d.Do(t.Context(), &repair.Intent{ID: "breaker/1/notify/reset", Step: repair.StepNotify, Rule: repair.RuleReset, State: repair.Healthy}, false)
	require.Equal(t, repair.Taken, r.Outcome, r.Text)
	assert.Equal(t, map[string]string{"alertname": "GpuActionsBreakerOpen", "cluster": "prod"}, m.alerts[0].Labels)
	assert.True(t, now.Equal(m.alerts[0].EndsAt), "a reset ends the same alert")
	assert.Contains(t, m.alerts[0].Annotations["summary"], "reset")
}

func TestTheSignatureIsOfTheBody(t *testing.T) {
	m := newManager(t)
	require.Equal(t, repair.Taken, m.driver("key").Do(t.Context(), intent(repair.Suspect), false).Outcome)
	mac := hmac.New(sha256.New, []byte("key"))
	mac.Write(m.body)
	assert.Equal(t, hex.EncodeToString(mac.Sum(nil)), m.signature)
}

func TestAnswersAndDryRuns(t *testing.T) {
	m := newManager(t)
	d := m.driver("")
	assert.Equal(t, repair.Taken, d.Do(t.Context(), intent(repair.Suspect), true).Outcome)
	assert.Empty(t, m.body, "a dry run sends nothing")
	m.answer = http.StatusInternalServerError
	r := d.Do(t.Context(), intent(repair.Suspect), false)
	assert.Equal(t, repair.Failed, r.Outcome)
	assert.Contains(t, r.Text, "on demand")
	p := intent(repair.Suspect)
	p.Step = repair.StepCordon
	assert.Equal(t, repair.Failed, d.Do(t.Context(), p, false).Outcome)
	m.Close()
	assert.Equal(t, repair.Failed, d.Do(t.Context(), intent(repair.Suspect), false).Outcome, "nobody answers")
}

// TestTheBodyOnTheWire: exactly what an Alertmanager gets, for those that take its place.
func TestTheBodyOnTheWire(t *testing.T) {
	m := newManager(t)
	require.Equal(t, repair.Taken, m.driver("").Do(t.Context(), intent(repair.KeptOff), false).Outcome)
	assert.JSONEq(t, `[{
		"labels": {"alertname": "GpuNodeRepair", "cluster": "prod", "node": "n1", "case": "c1"},
		"annotations": {"id": "c1/notify/0/kept_off", "state": "kept_off", "rule": "onset", "gpu": "GPU-1", "summary": "c1 kept_off GPU-1"},
		"startsAt": "2026-03-01T12:00:00Z", "endsAt": "2026-03-02T12:00:00Z"
	}]`, string(m.body))
}
