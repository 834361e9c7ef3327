// SPDX-License-Identifier: Apache-2.0

// Package webhook tells an Alertmanager, or whatever takes the same request, of each
// state of a node. Alertmanager carries it on to Slack, pagers and mail.
package webhook // import "github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/webhook"

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const name = "webhook"

// SignatureHeader is the HMAC-SHA256 of the body in hex, where a secret is set.
const SignatureHeader = "Gpu-Collector-Signature"

// timeout bounds one request, maxAnswer the answer that an error quotes.
const timeout, maxAnswer = 10 * time.Second, 512

// repeated is for how long Alertmanager takes an alert for firing that nobody repeats.
const repeated = 2 * repair.RepeatAfter

// Driver posts to POST /api/v2/alerts of an Alertmanager.
type Driver struct {
	client   *http.Client
	url      string
	cluster  string
	secret   []byte
	now      func() time.Time
	duration time.Duration
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver. An empty secret signs nothing.
func New(client *http.Client, url, cluster, secret string, now func() time.Time) *Driver {
	return &Driver{client: client, url: url, cluster: cluster, secret: []byte(secret), now: now, duration: repeated}
}

// Name implements driver.Driver.
func (d *Driver) Name() string { return name }

// Look implements driver.Driver: nobody speaks through a webhook.
func (d *Driver) Look(context.Context, []repair.Case) (driver.View, error) {
	return driver.View{}, nil
}

// alert is one of Alertmanager's API v2. Its labels make it one alert per node: a later
// state replaces it.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
}

// Do implements driver.Driver.
func (d *Driver) Do(ctx context.Context, p *repair.Intent, dryRun bool) repair.Result {
	r := repair.Result{Outcome: repair.Taken, Driver: name, After: string(p.State)}
	if p.Step != repair.StepNotify {
		return driver.Failed(name, fmt.Errorf("a webhook has no step %q", p.Step))
	}
	if dryRun {
		return r
	}
	if err := d.post(ctx, d.alert(p)); err != nil {
		return driver.Failed(name, err)
	}
	return r
}

func (d *Driver) alert(p *repair.Intent) alert {
	now := d.now()
	a := alert{
		Labels:      map[string]string{"alertname": "GpuNodeRepair", "cluster": d.cluster, "node": p.Case.Node, "case": p.Case.ID},
		Annotations: map[string]string{"id": p.ID, "state": string(p.State), "rule": string(p.Rule), "summary": driver.Summary(&p.Case)},
		StartsAt:    now, EndsAt: now.Add(d.duration),
	}
	if p.State == repair.Healthy {
		a.EndsAt = now
	}
	if p.Case.ID == "" { // of the breaker
		a.Labels = map[string]string{"alertname": "GpuActionsBreakerOpen", "cluster": d.cluster}
		a.Annotations["summary"] = "The breaker is open by " + string(p.Rule) + ": nothing more is done until a person resets it."
		if p.State == repair.Healthy {
			a.Annotations["summary"] = "The breaker is closed: a person has reset it."
		}
		return a
	}
	if p.Case.GPU != "" {
		a.Annotations["gpu"] = p.Case.GPU
	}
	return a
}

func (d *Driver) post(ctx context.Context, a alert) error {
	body, err := json.Marshal([]alert{a})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if len(d.secret) > 0 {
		mac := hmac.New(sha256.New, d.secret)
		mac.Write(body)
		req.Header.Set(SignatureHeader, hex.EncodeToString(mac.Sum(nil)))
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // of an error, for people
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s: %s", d.url, resp.Status, bytes.TrimSpace(answer))
	}
	return nil
}
