// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// settings of the command.
type settings struct {
	endpoint, token, tokenFile string
	caFile, certFile, keyFile  string
	clusters                   []string
	interval                   time.Duration
	once                       bool
}

// minInterval keeps a slip from loading the gateway.
const minInterval = 200 * time.Millisecond

// Command returns `top`.
func Command() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the fleet of a gateway in the terminal",
		Long: "Shows what needs attention, the worst first, and all nodes, from the API of a gateway's fleet view. `?` explains the screen.\n\n" +
			"Environment: GPU_COLLECTOR_ENDPOINT, which may have user and password for basic auth (https://user:password@gateway:8086), " +
			"GPU_COLLECTOR_TOKEN, GPU_COLLECTOR_CA_FILE, GPU_COLLECTOR_CERT_FILE, GPU_COLLECTOR_KEY_FILE and NO_COLOR.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: false,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd, &s) },
	}
	f := cmd.Flags()
	f.StringVar(&s.endpoint, "endpoint", cmp.Or(os.Getenv("GPU_COLLECTOR_ENDPOINT"), "http://127.0.0.1:8086"), "URL of the fleet view")
	f.StringSliceVar(&s.clusters, "cluster", nil, "only these clusters")
	f.StringVar(&s.tokenFile, "token-file", "", "file with the bearer token, read anew at each request")
	f.StringVar(&s.token, "token", "", "bearer token; others on this machine can see it here, so rather GPU_COLLECTOR_TOKEN or --token-file")
	f.StringVar(&s.caFile, "ca-file", os.Getenv("GPU_COLLECTOR_CA_FILE"), "certificates to trust instead of the system's, PEM")
	f.StringVar(&s.certFile, "cert-file", os.Getenv("GPU_COLLECTOR_CERT_FILE"), "certificate to show to the gateway, PEM")
	f.StringVar(&s.keyFile, "key-file", os.Getenv("GPU_COLLECTOR_KEY_FILE"), "its key, PEM")
	f.DurationVar(&s.interval, "interval", 2*time.Second, "time between two looks")
	f.BoolVar(&s.once, "once", false, "write all that needs attention and all nodes once as plain text, and fail when the gateway does not answer or is not well")
	return cmd
}

// check reports all mistakes.
func (s *settings) check() error {
	u, err := url.Parse(s.endpoint)
	return errors.Join(
		mistake.If(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https", "`--endpoint` is %q, must be a URL such as http://127.0.0.1:8086", s.shownEndpoint()),
		mistake.If(s.token != "" && s.tokenFile != "", "`--token` and `--token-file` are both given, must be one of them"),
		mistake.If((s.certFile == "") != (s.keyFile == ""), "`--cert-file` and `--key-file` must be given together"),
		mistake.If(s.interval < minInterval, "`--interval` is %s, must be at least %s", s.interval, minInterval),
	)
}

// client returns a client of the gateway.
func (s *settings) client() (*fleetclient.Client, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.caFile != "" {
		pem, err := os.ReadFile(s.caFile)
		if err != nil {
			return nil, fmt.Errorf("`--ca-file`: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("`--ca-file` %s has no certificate, must be PEM", s.caFile)
		}
	}
	if s.certFile != "" {
		// Read at each connection, so that a certificate that is renewed is taken.
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
			return &cert, err
		}
		if _, err := conf.GetClientCertificate(nil); err != nil {
			return nil, fmt.Errorf("`--cert-file` and `--key-file`: %w", err)
		}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSClientConfig: conf}
	return fleetclient.NewClient(s.endpoint,
		fleetclient.WithHTTPClient(&http.Client{Transport: transport}), fleetclient.WithBearerToken(s.bearer))
}

// shownEndpoint is the endpoint without a password.
func (s *settings) shownEndpoint() string {
	u, err := url.Parse(s.endpoint)
	if err != nil {
		return "no URL"
	}
	return u.Redacted()
}

func (s *settings) bearer() (string, error) {
	switch {
	case s.tokenFile != "":
		token, err := os.ReadFile(s.tokenFile)
		return string(token), err
	case s.token != "":
		return s.token, nil
	}
	return os.Getenv("GPU_COLLECTOR_TOKEN"), nil
}

func run(cmd *cobra.Command, s *settings) error {
	if err := s.check(); err != nil {
		return err
	}
	client, err := s.client()
	if err != nil {
		return err
	}
	o := Options{Source: NewSource(client, s.clusters), Endpoint: s.shownEndpoint(), Interval: s.interval, Plain: os.Getenv("NO_COLOR") != ""}
	if s.once {
		return once(cmd.Context(), cmd.OutOrStdout(), o, func(ctx context.Context) (*fleetclient.Health, error) {
			return answer[fleetclient.Health](client.GetHealth(ctx))
		})
	}
	// A character device may be a terminal.
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return errors.New("`top` draws on a terminal, and its output is none: `--once` writes plain text")
	}
	_, err = tea.NewProgram(New(o), tea.WithContext(cmd.Context())).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}
