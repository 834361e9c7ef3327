// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/lease"
)

// leaseLock is a Lease of Kubernetes. client-go's leader election would add four hundred
// packages to a binary that needs three requests.
type leaseLock struct {
	cfg    LeaseConfig
	url    string // of the namespace's leases
	client *http.Client
	log    *zap.Logger
	gone   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	mu      sync.Mutex
	elector *lease.Elector
	failing bool
}

func newLeaseLock(cfg LeaseConfig, name string, log *zap.Logger) (*leaseLock, error) {
	if cfg.Server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" {
			return nil, errors.New("`lock::lease` needs a pod of Kubernetes, or `server`: KUBERNETES_SERVICE_HOST is not set")
		}
		cfg.Server = "https://" + net.JoinHostPort(host, port)
	}
	if cfg.Namespace == "" {
		text, err := os.ReadFile(serviceAccount + "namespace")
		if err != nil {
			return nil, fmt.Errorf("`lock::lease::namespace` is empty, and no pod's is known: %w", err)
		}
		cfg.Namespace = strings.TrimSpace(string(text))
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if strings.HasPrefix(cfg.Server, "https:") {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("`lock::lease::ca_file`: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("`lock::lease::ca_file` %s has no certificate", cfg.CAFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &leaseLock{
		cfg: cfg, log: log,
		url:    strings.TrimSuffix(cfg.Server, "/") + "/apis/coordination.k8s.io/v1/namespaces/" + url.PathEscape(cfg.Namespace) + "/leases",
		client: &http.Client{Transport: transport},
		gone:   make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
		elector: lease.New(lease.Config{Name: name, Duration: cfg.Duration, Deadline: cfg.Deadline}),
	}, nil
}

func (l *leaseLock) acquire(ctx context.Context) error {
	for !l.try(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(l.cfg.Retry):
		}
	}
	go l.renew() //nolint:gosec // G118: it outlives the start, and ends with the extension
	return nil
}

// renew tries until the deadline has passed.
func (l *leaseLock) renew() {
	defer close(l.done)
	for {
		select {
		case <-l.stop:
			return
		case <-time.After(l.cfg.Retry):
		}
		ctx, cancel := context.WithTimeout(context.Background(), l.cfg.Deadline/2)
		l.try(ctx)
		cancel()
		if !l.holds() {
			close(l.gone)
			return
		}
	}
}

// try reads the Lease and writes it, where that is this process' to do.
func (l *leaseLock) try(ctx context.Context) (held bool) {
	held, err := l.once(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && !l.failing && ctx.Err() == nil {
		l.log.Warn("The Lease cannot be read or renewed.", zap.String("lease", l.cfg.Namespace+"/"+l.cfg.Name), zap.Error(err))
	}
	l.failing = err != nil
	return held
}

func (l *leaseLock) once(ctx context.Context) (held bool, err error) {
	now, err := l.get(ctx)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	at := time.Now()
	next, mine := l.elector.Next(now.Spec.record(), at)
	l.mu.Unlock()
	if !mine {
		return false, nil
	}
	if err := l.put(ctx, now, next); err != nil {
		if errors.Is(err, errConflict) {
			err = nil // another was faster
		}
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.elector.Wrote(next, at)
	return true, nil
}

func (l *leaseLock) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.elector.Holds(time.Now())
}

func (l *leaseLock) lost() <-chan struct{} { return l.gone }

func (l *leaseLock) release(ctx context.Context) {
	if !l.holds() {
		return
	}
	close(l.stop)
	<-l.done
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Deadline/2)
	defer cancel()
	now, err := l.get(ctx)
	if err == nil && l.holds() {
		l.mu.Lock()
		free := l.elector.Release(time.Now())
		l.mu.Unlock()
		err = l.put(ctx, now, free)
	}
	if err != nil {
		l.log.Warn("The Lease was not let go: the standby waits until it runs out.", zap.Error(err))
	}
}

// leaseObject is a Lease, with all of its metadata as it came.
type leaseObject struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       leaseSpec      `json:"spec"`
	missing    bool
}

type leaseSpec struct {
	Holder      *string    `json:"holderIdentity,omitempty"`
	Duration    *int       `json:"leaseDurationSeconds,omitempty"`
	Acquired    *microTime `json:"acquireTime,omitempty"`
	Renewed     *microTime `json:"renewTime,omitempty"`
	Transitions *int       `json:"leaseTransitions,omitempty"`
}

// microTime is Kubernetes' MicroTime, RFC 3339 with six digits.
type microTime struct{ time.Time }

const microLayout = "2006-01-02T15:04:05.000000Z07:00"

// MarshalJSON implements json.Marshaler.
func (t microTime) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(microLayout) + `"`), nil
}

func (s *leaseSpec) record() (r lease.Record) {
	if s.Holder != nil {
		r.Holder = *s.Holder
	}
	if s.Duration != nil {
		r.Duration = time.Duration(*s.Duration) * time.Second
	}
	if s.Acquired != nil {
		r.Acquired = s.Acquired.Time
	}
	if s.Renewed != nil {
		r.Renewed = s.Renewed.Time
	}
	if s.Transitions != nil {
		r.Transitions = *s.Transitions
	}
	return r
}

// specOf rounds the duration up: the others wait rather too long.
func specOf(r lease.Record) leaseSpec {
	seconds := int((r.Duration + time.Second - 1) / time.Second)
	return leaseSpec{&r.Holder, &seconds, &microTime{r.Acquired}, &microTime{r.Renewed}, &r.Transitions}
}

var errConflict = errors.New("the Lease was changed by another process")

// get returns the Lease, or with missing the Lease that is to be made.
func (l *leaseLock) get(ctx context.Context) (*leaseObject, error) {
	o := &leaseObject{}
	switch code, err := l.do(ctx, http.MethodGet, "/"+url.PathEscape(l.cfg.Name), nil, o); {
	case code == http.StatusNotFound:
		return &leaseObject{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: map[string]any{"name": l.cfg.Name, "namespace": l.cfg.Namespace}, missing: true}, nil
	case err != nil:
		return nil, err
	}
	return o, nil
}

// put replaces a Lease that nobody changed since it was read.
func (l *leaseLock) put(ctx context.Context, o *leaseObject, r lease.Record) error {
	method, path := http.MethodPut, "/"+url.PathEscape(l.cfg.Name)
	if o.missing {
		method, path = http.MethodPost, ""
	}
	next := *o
	next.Spec = specOf(r)
	code, err := l.do(ctx, method, path, &next, nil)
	if code == http.StatusConflict {
		return errConflict
	}
	return err
}

const maxLeaseBytes = 1 << 20

func (l *leaseLock) do(ctx context.Context, method, path string, body, into any) (code int, err error) {
	var r io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, err
		}
		r = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Deadline/2)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, l.url+path, r)
	if err != nil {
		return 0, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if l.cfg.TokenFile != "" {
		token, err := os.ReadFile(l.cfg.TokenFile) // which is renewed
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := l.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLeaseBytes))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode/100 != 2 {
		return resp.StatusCode, fmt.Errorf("%s %s: %s: %.200s", method, l.url+path, resp.Status, text)
	}
	if into != nil {
		return resp.StatusCode, json.Unmarshal(text, into)
	}
	return resp.StatusCode, nil
}
