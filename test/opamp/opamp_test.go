// SPDX-License-Identifier: Apache-2.0

package opamp

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opamp-go/protobufs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const instance = "0198f2a4-7c1e-7d3a-9b55-2f6c01d9e001"

// overlay adds the extension to the agent's, with its settings as one line.
func overlay(settings, more string) string {
	return fmt.Sprintf("extensions:\n  opamp: %s\nservice:\n  extensions: [straggler_threshold, healthcheckv2, opamp]\n%s", settings, more)
}

// well says whether a message is that the agent and its pipelines are.
func well(m *protobufs.AgentToServer) bool {
	return m.GetHealth().GetHealthy() && m.GetHealth().GetComponentHealthMap()["pipeline:metrics"].GetHealthy()
}

func capabilities(m *protobufs.AgentToServer) protobufs.AgentCapabilities {
	return protobufs.AgentCapabilities(m.GetCapabilities())
}

// TestShippedConfig: an agent with config.yaml tells a server who it is, what
// is in it and how it is, over TLS and with a token, which it keeps to itself.
func TestShippedConfig(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("config.yaml")
	require.NoError(t, err)
	s := newServer(t, true)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("hush"), 0o600))
	c := start(t, string(text), nil, []string{
		"OPAMP_SERVER=" + s.url("ws"), "OPAMP_CA=" + s.ca(t), "OPAMP_TOKEN=" + token, "GPU_COLLECTOR_CLUSTER=lab",
	})
	eventually(t, "it says who it is", s.any(func(m *protobufs.AgentToServer) bool {
		return described(m, "k8s.cluster.name") == "lab" && described(m, "service.name") != ""
	}))
	eventually(t, "it is well, and each pipeline is", s.any(well))
	assert.Equal(t, "Bearer hush", s.header("Authorization"))
	var components *protobufs.AvailableComponents
	s.send(t, &protobufs.ServerToAgent{Flags: uint64(protobufs.ServerToAgentFlags_ServerToAgentFlags_ReportAvailableComponents)})
	eventually(t, "it names its components", s.any(func(m *protobufs.AgentToServer) bool {
		components = m.GetAvailableComponents()
		return len(components.GetComponents()) > 0
	}))
	assert.Contains(t, components.GetComponents()["receivers"].GetSubComponentMap(), "nvml")
	assert.Contains(t, components.GetComponents()["processors"].GetSubComponentMap(), "straggler")
	assert.NotContains(t, s.config(t), "hush")
	assert.NotContains(t, c.log(t), "hush")
}

// TestWebSocket has each key of the transport say something that the server sees.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	start(t, overlay(fmt.Sprintf(`{instance_uid: %s, server: {ws: {endpoint: %q, tls: {ca_file: %q}, headers: {X-Tenant: "${env:TENANT}"}}},
    agent_description: {include_resource_attributes: true, non_identifying_attributes: {rack: r7}}}`, instance, s.url("ws"), s.ca(t)),
		"  telemetry: {resource: {deployment.environment.name: staging}}\n"), nil, []string{"TENANT=secret-tenant"})
	eventually(t, "it says who it is", s.any(func(m *protobufs.AgentToServer) bool {
		return described(m, "service.instance.id") == instance && described(m, "rack") == "r7" && described(m, "deployment.environment.name") == "staging"
	}))
	assert.Equal(t, "secret-tenant", s.header("X-Tenant"))
	assert.Equal(t, "websocket", s.header("Upgrade"))
	shown := s.config(t)
	assert.Contains(t, shown, "X-Tenant: '[REDACTED]'")
	assert.NotContains(t, shown, "secret-tenant")
}

// TestServerIsVerified: without the CA's file there is no connection.
func TestServerIsVerified(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"ws", "http"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, true)
			c := start(t, overlay(fmt.Sprintf(`{server: {%s: {endpoint: %q}}}`, scheme, s.url(scheme)), ""), nil, nil)
			eventually(t, "it says why not", func() bool { return strings.Contains(c.log(t), "unknown authority") })
			assert.Empty(t, s.told())
		})
	}
}

// TestHTTP: the other transport, which asks again after each interval.
func TestHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t, true)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("hush"), 0o600))
	start(t, fmt.Sprintf(`
extensions:
  bearertokenauth: {filename: %q}
  opamp: {server: {http: {endpoint: %q, polling_interval: 100ms, auth: bearertokenauth, tls: {ca_file: %q}, headers: {X-Tenant: lab}}}}
service: {extensions: [straggler_threshold, healthcheckv2, bearertokenauth, opamp]}
`, token, s.url("http"), s.ca(t)), nil, nil)
	// By itself it has a few things to say, and asks four times by the default of 30 s.
	eventually(t, "it asks often", func() bool { return len(s.told()) > 20 })
	assert.Equal(t, "lab", s.header("X-Tenant"))
	assert.Equal(t, "Bearer hush", s.header("Authorization"))
	assert.Empty(t, s.header("Upgrade"))
}

// TestCapabilities: what is switched off is neither announced nor said, even
// when the server asks for everything.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	const (
		reportsStatus     = protobufs.AgentCapabilities_AgentCapabilities_ReportsStatus
		reportsConfig     = protobufs.AgentCapabilities_AgentCapabilities_ReportsEffectiveConfig
		reportsHealth     = protobufs.AgentCapabilities_AgentCapabilities_ReportsHealth
		reportsComponents = protobufs.AgentCapabilities_AgentCapabilities_ReportsAvailableComponents
		acceptsRestart    = protobufs.AgentCapabilities_AgentCapabilities_AcceptsRestartCommand
	)
	const all = reportsStatus | reportsConfig | reportsHealth | reportsComponents
	for _, tt := range []struct {
		name, settings string
		want           protobufs.AgentCapabilities
	}{
		{"defaults", "{}", all},
		{"no configuration", "{reports_effective_config: false}", all &^ reportsConfig},
		{"no components", "{reports_available_components: false}", all &^ reportsComponents},
		{"restarts", "{accepts_restart_command: true}", all | acceptsRestart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, false)
			start(t, overlay(fmt.Sprintf(`{server: {ws: {endpoint: %q}}, capabilities: %s}`, s.url("ws"), tt.settings), ""),
				[]string{"--feature-gates=extension.opampextension.RemoteRestarts"}, nil)
			// The agent is told of its full state once it is up: the answer has all that it ever says.
			before := len(s.told())
			eventually(t, "it is there", func() bool { before = len(s.told()); return before > 0 })
			s.send(t, &protobufs.ServerToAgent{Flags: uint64(protobufs.ServerToAgentFlags_ServerToAgentFlags_ReportFullState)})
			var full *protobufs.AgentToServer
			eventually(t, "it says all", func() bool {
				for _, m := range s.told()[before:] {
					if m.GetAgentDescription() != nil {
						full = m
					}
				}
				return full != nil
			})
			assert.Equal(t, tt.want, capabilities(full))
			if tt.want&reportsConfig != 0 {
				eventually(t, "it shows its configuration", s.any(func(m *protobufs.AgentToServer) bool { return m.GetEffectiveConfig() != nil }))
			}
			eventually(t, "it says how it is", s.any(well))
			for _, m := range s.told() {
				assert.True(t, tt.want&reportsConfig != 0 || m.GetEffectiveConfig() == nil, "it shows its configuration")
				assert.True(t, tt.want&reportsComponents != 0 || m.GetAvailableComponents() == nil, "it names its components")
			}
			assert.Equal(t, tt.want&reportsComponents != 0, full.GetAvailableComponents() != nil)
		})
	}
}

// TestRestart: a server that is allowed to has the agent read its configuration anew.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := newServer(t, false)
	config := func(rack string) string {
		return overlay(fmt.Sprintf(`{instance_uid: %s, server: {ws: {endpoint: %q}}, capabilities: {accepts_restart_command: true},
    agent_description: {non_identifying_attributes: {rack: %s}}}`, instance, s.url("ws"), rack), "")
	}
	in := func(rack string) func() bool {
		return s.any(func(m *protobufs.AgentToServer) bool { return described(m, "rack") == rack })
	}
	c := start(t, config("r7"), []string{"--feature-gates=extension.opampextension.RemoteRestarts"}, nil)
	eventually(t, "it is in rack r7, and up", func() bool {
		return in("r7")() && s.any(func(m *protobufs.AgentToServer) bool {
			return m.GetHealth().GetComponentHealthMap()["pipeline:metrics"].GetHealthy()
		})()
	})
	c.write(t, config("r8"))
	require.False(t, in("r8")())
	s.send(t, &protobufs.ServerToAgent{Command: &protobufs.ServerToAgentCommand{Type: protobufs.CommandType_CommandType_Restart}})
	eventually(t, "it is in rack r8", in("r8"))
}

// TestParentIsNotWatched: `ppid` has no effect, as docs/operations.md says. The
// extension reports a fatal error to a host that takes none of an extension.
// When this fails the key works, and the document is to say so.
func TestParentIsNotWatched(t *testing.T) {
	t.Parallel()
	parent := exec.Command("sleep", "600")
	require.NoError(t, parent.Start())
	s := newServer(t, false)
	c := start(t, overlay(fmt.Sprintf(`{server: {ws: {endpoint: %q}}, ppid: %d, ppid_poll_interval: 100ms}`, s.url("ws"), parent.Process.Pid), ""), nil, nil)
	eventually(t, "it is up", s.any(well))
	require.NoError(t, parent.Process.Kill())
	_ = parent.Wait()
	select {
	case <-c.ends:
		t.Fatal("it ended with its parent")
	case <-time.After(5 * time.Second):
	}
}

// TestNoHealthHangs: without `reports_health` the extension makes no channel
// for what it is told of the components, and waits for ever to write to it. The
// Collector does not start, as docs/operations.md says. When this fails it does.
func TestNoHealthHangs(t *testing.T) {
	t.Parallel()
	s := newServer(t, false)
	c := start(t, overlay(fmt.Sprintf(`{server: {ws: {endpoint: %q}}, capabilities: {reports_health: false}}`, s.url("ws")), ""), nil, nil)
	eventually(t, "it begins to start", func() bool { return strings.Contains(c.log(t), "Extension is starting") })
	select {
	case <-c.ends:
		t.Fatal("it ended")
	case <-time.After(3 * time.Second):
	}
	require.NoError(t, c.process.Signal(syscall.SIGQUIT)) // writes the stacks
	<-c.ends
	assert.Regexp(t, `(?m)^goroutine 1 .*chan send \(nil chan\)`, c.log(t))
	assert.NotContains(t, c.log(t), "Everything is ready")
}

// proven are the keys of the extension, each with the test that shows its effect.
var proven = map[string]string{
	"server.ws.endpoint":                            "TestWebSocket",
	"server.ws.tls":                                 "TestWebSocket, TestServerIsVerified",
	"server.ws.headers":                             "TestWebSocket",
	"server.ws.auth":                                "TestShippedConfig",
	"server.http.endpoint":                          "TestHTTP",
	"server.http.tls":                               "TestHTTP, TestServerIsVerified",
	"server.http.headers":                           "TestHTTP",
	"server.http.auth":                              "TestHTTP",
	"server.http.polling_interval":                  "TestHTTP",
	"instance_uid":                                  "TestWebSocket",
	"capabilities.reports_effective_config":         "TestCapabilities",
	"capabilities.reports_health":                   "TestCapabilities",
	"capabilities.reports_available_components":     "TestCapabilities",
	"capabilities.accepts_restart_command":          "TestCapabilities, TestRestart",
	"agent_description.include_resource_attributes": "TestWebSocket",
	"agent_description.non_identifying_attributes":  "TestWebSocket, TestRestart",
	"ppid":               "TestParentIsNotWatched",
	"ppid_poll_interval": "TestParentIsNotWatched",
}

// TestEveryKeyIsProven: the extension has no key that no test here sets.
func TestEveryKeyIsProven(t *testing.T) {
	dir := os.Getenv("OPAMP_EXTENSION")
	require.NotEmpty(t, dir, "run.sh names the extension's sources in OPAMP_EXTENSION")
	text, err := os.ReadFile(filepath.Join(dir, "config.schema.yaml"))
	require.NoError(t, err)
	var schema node
	require.NoError(t, yaml.Unmarshal(text, &schema))
	found := map[string]string{}
	schema.keys("", schema.Defs, func(key string) { found[key] = "" })
	assert.Equal(t, slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(proven)))

	tests, err := os.ReadFile("opamp_test.go")
	require.NoError(t, err)
	for key, names := range proven {
		for name := range strings.SplitSeq(names, ", ") {
			assert.Regexp(t, regexp.MustCompile(`(?m)^func `+name+`\(`), string(tests), key)
		}
	}
}

// node is a part of a schema.
type node struct {
	Defs       map[string]node `yaml:"$defs"`
	Ref        string          `yaml:"$ref"`
	Properties map[string]node
}

func (n node) keys(path string, defs map[string]node, found func(string)) {
	if def, ok := defs[n.Ref]; ok {
		n = def
	}
	if len(n.Properties) == 0 {
		found(path)
		return
	}
	for name, p := range n.Properties {
		p.keys(strings.TrimPrefix(path+"."+name, "."), defs, found)
	}
}
