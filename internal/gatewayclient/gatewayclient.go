// SPDX-License-Identifier: Apache-2.0

// Package gatewayclient is how commands reach a gateway's fleet view: their flags,
// environment and credentials.
package gatewayclient // import "github.com/gpu-collector/gpu-collector/internal/gatewayclient"

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// Settings are the flags of a command.
type Settings struct {
	Endpoint, Token, TokenFile string
	CAFile, CertFile, KeyFile  string
}

// Environment names what the flags default to, for the text of a command.
const Environment = "Environment: GPU_COLLECTOR_ENDPOINT, which may have user and password for basic auth (https://user:password@gateway:8086), " +
	"GPU_COLLECTOR_TOKEN, GPU_COLLECTOR_CA_FILE, GPU_COLLECTOR_CERT_FILE, GPU_COLLECTOR_KEY_FILE"

// Register adds the flags.
func (s *Settings) Register(f *pflag.FlagSet) {
	f.StringVar(&s.Endpoint, "endpoint", env("GPU_COLLECTOR_ENDPOINT", "http://127.0.0.1:8086"), "the fleet view: a URL, or host:port for http")
	f.StringVar(&s.TokenFile, "token-file", "", "file with the bearer token, read anew at each request")
	f.StringVar(&s.Token, "token", "", "bearer token; others on this machine can see it here, so rather GPU_COLLECTOR_TOKEN or --token-file")
	f.StringVar(&s.CAFile, "ca-file", os.Getenv("GPU_COLLECTOR_CA_FILE"), "certificates to trust instead of the system's, PEM")
	f.StringVar(&s.CertFile, "cert-file", os.Getenv("GPU_COLLECTOR_CERT_FILE"), "certificate to show to the gateway, PEM")
	f.StringVar(&s.KeyFile, "key-file", os.Getenv("GPU_COLLECTOR_KEY_FILE"), "its key, PEM")
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// Check completes host:port to a URL and reports all mistakes.
func (s *Settings) Check() error {
	if s.Endpoint != "" && !strings.Contains(s.Endpoint, "://") {
		s.Endpoint = "http://" + s.Endpoint
	}
	var errs []error
	if u, err := url.Parse(s.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		errs = append(errs, fmt.Errorf("`--endpoint` is %q, must be host:port such as gateway:8086, or a URL such as https://gateway:8086", s.Shown()))
	}
	if s.Token != "" && s.TokenFile != "" {
		errs = append(errs, errors.New("`--token` and `--token-file` are both given, must be one of them"))
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		errs = append(errs, errors.New("`--cert-file` and `--key-file` must be given together"))
	}
	return errors.Join(errs...)
}

// Client returns a client of the gateway.
func (s *Settings) Client() (*fleetclient.ClientWithResponses, error) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("`--ca-file`: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("`--ca-file` %s has no certificate, must be PEM", s.CAFile)
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	if s.CertFile != "" {
		if _, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile); err != nil {
			return nil, fmt.Errorf("`--cert-file` and `--key-file`: %w", err)
		}
		// Read at each connection, so that a certificate that is renewed is taken.
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
			return &cert, err
		}
	}
	return fleetclient.NewClientWithResponses(s.Endpoint,
		fleetclient.WithHTTPClient(&http.Client{Transport: transport}), fleetclient.WithBearerToken(s.bearer))
}

// Shown is the endpoint without a password.
func (s *Settings) Shown() string {
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return "no URL"
	}
	return u.Redacted()
}

func (s *Settings) bearer() (string, error) {
	switch {
	case s.TokenFile != "":
		token, err := os.ReadFile(s.TokenFile)
		return string(token), err
	case s.Token != "":
		return s.Token, nil
	}
	return os.Getenv("GPU_COLLECTOR_TOKEN"), nil
}
