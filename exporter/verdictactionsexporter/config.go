// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/exporter/otlpexporter"

	"github.com/gpu-collector/gpu-collector/internal/repair"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Config of the exporter.
type Config struct {
	// Cluster is the cluster whose nodes are acted upon. Records of others are left alone.
	Cluster string `mapstructure:"cluster"`
	// DryRun does everything but the last call, with the same audit records.
	DryRun bool `mapstructure:"dry_run"`
	// PollInterval is how often the drivers are asked what they see.
	PollInterval time.Duration      `mapstructure:"poll_interval"`
	State        StateConfig        `mapstructure:"state"`
	Audit        AuditConfig        `mapstructure:"audit"`
	Confirmation ConfirmationConfig `mapstructure:"confirmation"`
	Breaker      BreakerConfig      `mapstructure:"breaker"`
	BurnIn       BurnInConfig       `mapstructure:"burn_in"`
	Probation    ProbationConfig    `mapstructure:"probation"`
	// MinPeers is how many other active nodes a peer group keeps.
	MinPeers int `mapstructure:"min_peers"`

	// Kubernetes changes nodes and evicts pods.
	Kubernetes configoptional.Optional[KubernetesConfig] `mapstructure:"kubernetes"`
	// Slurm drains nodes.
	Slurm configoptional.Optional[SlurmConfig] `mapstructure:"slurm"`
	// Webhook tells an Alertmanager.
	Webhook configoptional.Optional[WebhookConfig] `mapstructure:"webhook"`

	_ struct{}
}

// StateConfig says where cases and breaker outlive a restart.
type StateConfig struct {
	// StorageID is the storage extension that keeps them; required outside of a dry run.
	StorageID *component.ID `mapstructure:"storage"`
	_         struct{}
}

// AuditConfig says where the record of each decision goes.
type AuditConfig struct {
	// File gets one line of JSON per decision; empty for none.
	File string `mapstructure:"file"`
	// MaxMiB bounds the file. At it the file becomes FILE.1, in the place of the one before,
	// and a new one begins: both have the last MaxMiB, or more.
	MaxMiB int `mapstructure:"max_mib"`
	// OTLP is the gateway's endpoint, for the board's ledger. Its settings are those of the
	// otlp_grpc exporter.
	OTLP configoptional.Optional[otlpexporter.Config] `mapstructure:"otlp_grpc"`
	_    struct{}
}

// ConfirmationConfig says what confirms a verdict.
type ConfirmationConfig struct {
	// Lasting confirms an episode that was watched for so long.
	Lasting time.Duration `mapstructure:"lasting"`
	// Again is in how long a second onset that names the same GPU confirms.
	Again time.Duration `mapstructure:"again"`
	// SilenceWait is how long a new case waits for the gateway's word of silences, and an
	// instance that starts or takes over before it does anything new. A reading of the node
	// ends the wait of a case after a fifth of it: make that three pushes or more.
	SilenceWait time.Duration `mapstructure:"silence_wait"`
	_           struct{}
}

// BreakerConfig bounds the nodes that are acted upon.
type BreakerConfig struct {
	// MaxNodes may be kept off at a time.
	MaxNodes int `mapstructure:"max_nodes"`
	// MaxFraction of a peer group may be kept off at a time, but always one node.
	MaxFraction float64 `mapstructure:"max_fraction"`
	// MaxPerHour nodes may be taken on within an hour.
	MaxPerHour int `mapstructure:"max_per_hour"`
	// Reset closes the breaker when it is changed, as to a date and a name.
	Reset string `mapstructure:"reset"`
	_     struct{}
}

// BurnInConfig says when a test runs.
type BurnInConfig struct {
	// AfterDrain tests a node once it is empty, before anybody says that it is repaired.
	AfterDrain bool `mapstructure:"after_drain"`
	// Retest repeats a failed test after that time; 0 waits for a person.
	Retest time.Duration `mapstructure:"retest"`
	_      struct{}
}

// ProbationConfig says how a node proves that it is healthy.
type ProbationConfig struct {
	// Duration of work among the peers.
	Duration time.Duration `mapstructure:"duration"`
	// Suspicion from which a node relapses; a straggler has 1.
	Suspicion float64 `mapstructure:"suspicion"`
	_         struct{}
}

// KubernetesConfig of the driver kubernetes.
type KubernetesConfig struct {
	// Kubeconfig is a file; empty for the pod's service account.
	Kubeconfig string `mapstructure:"kubeconfig"`
	// Namespace of the Lease and of burn-in Jobs.
	Namespace string `mapstructure:"namespace"`
	// Lease is the name of the Lease that makes one instance the active one; empty for none.
	Lease string          `mapstructure:"lease"`
	Rungs KubernetesRungs `mapstructure:"rungs"`
	// BurnInJob is a file with a Job, of which each test is a copy.
	BurnInJob string `mapstructure:"burn_in_job"`
	_         struct{}
}

// KubernetesRungs are the steps that may be taken.
type KubernetesRungs struct {
	// Event writes events about the node.
	Event bool `mapstructure:"event"`
	// Condition sets the node condition GpuStraggler.
	Condition bool `mapstructure:"condition"`
	// Label sets the label actions.gpu-collector.io/state.
	Label bool `mapstructure:"label"`
	// Taint keeps new pods off by a taint.
	Taint bool `mapstructure:"taint"`
	// DeviceTaint keeps new claims off one GPU by a DeviceTaintRule.
	DeviceTaint bool `mapstructure:"device_taint"`
	// Cordon makes the node unschedulable.
	Cordon bool `mapstructure:"cordon"`
	// Evict asks the eviction API for each pod of a node that is kept off.
	Evict bool `mapstructure:"evict"`
	// BurnIn runs the test as a Job.
	BurnIn bool `mapstructure:"burn_in"`
	_      struct{}
}

// SlurmConfig of the driver slurm.
type SlurmConfig struct {
	// Scontrol is the program, by path or by name.
	Scontrol string     `mapstructure:"scontrol"`
	Rungs    SlurmRungs `mapstructure:"rungs"`
	// BurnInCommand is a program with its arguments; the node's name is added.
	BurnInCommand []string `mapstructure:"burn_in_command"`
	// BurnInTimeout ends the command.
	BurnInTimeout time.Duration `mapstructure:"burn_in_timeout"`
	_             struct{}
}

// SlurmRungs are the steps that may be taken.
type SlurmRungs struct {
	// Drain drains the node, with a reason of ours.
	Drain bool `mapstructure:"drain"`
	// BurnIn runs the test as a command.
	BurnIn bool `mapstructure:"burn_in"`
	_      struct{}
}

// WebhookConfig of the driver webhook.
type WebhookConfig struct {
	// HTTP has the endpoint: an Alertmanager's /api/v2/alerts.
	HTTP confighttp.ClientConfig `mapstructure:"http"`
	// Secret signs the body by HMAC-SHA256, in the header Gpu-Collector-Signature.
	Secret configopaque.String `mapstructure:"secret"`
	Rungs  WebhookRungs        `mapstructure:"rungs"`
	_      struct{}
}

// WebhookRungs are the steps that may be taken.
type WebhookRungs struct {
	// Notify sends an alert at each state of a node, and when the breaker opens or is reset.
	Notify bool `mapstructure:"notify"`
	_      struct{}
}

// maxAuditMiB bounds what a file of the audit may grow to.
const maxAuditMiB = 1 << 20

func createDefaultConfig() component.Config {
	d := repair.DefaultConfig()
	return &Config{
		DryRun: true, PollInterval: 15 * time.Second, MinPeers: d.MinPeers,
		Audit:        AuditConfig{MaxMiB: 64, OTLP: configoptional.Default(*otlpexporter.NewFactory().CreateDefaultConfig().(*otlpexporter.Config))},
		Confirmation: ConfirmationConfig{Lasting: d.Lasting, Again: d.Again, SilenceWait: d.SilenceWait},
		Breaker:      BreakerConfig{MaxNodes: d.Breaker.MaxNodes, MaxFraction: d.Breaker.MaxFraction, MaxPerHour: d.Breaker.MaxPerHour},
		Probation:    ProbationConfig{Duration: d.Probation, Suspicion: d.Relapse},
		Kubernetes:   configoptional.Default(KubernetesConfig{Namespace: "gpu-collector", Lease: "gpu-collector-actions"}),
		Slurm:        configoptional.Default(SlurmConfig{Scontrol: "scontrol", BurnInTimeout: 4 * time.Hour}),
		Webhook:      configoptional.Default(WebhookConfig{HTTP: confighttp.NewDefaultClientConfig()}),
	}
}

// rungs are the enabled steps, in the order of repair.Rungs.
func (c *Config) rungs() (list []repair.Step) {
	on := map[repair.Step]bool{}
	if k := c.Kubernetes.Get(); k != nil {
		r := &k.Rungs
		on[repair.StepEvent], on[repair.StepCondition], on[repair.StepLabel] = r.Event, r.Condition, r.Label
		on[repair.StepTaint], on[repair.StepDeviceTaint], on[repair.StepCordon] = r.Taint, r.DeviceTaint, r.Cordon
		on[repair.StepEvict], on[repair.StepBurnIn] = r.Evict, r.BurnIn
	}
	if s := c.Slurm.Get(); s != nil {
		on[repair.StepDrain] = s.Rungs.Drain
		on[repair.StepBurnIn] = on[repair.StepBurnIn] || s.Rungs.BurnIn
	}
	if w := c.Webhook.Get(); w != nil {
		on[repair.StepNotify] = w.Rungs.Notify
	}
	for _, s := range repair.Rungs {
		if on[s] {
			list = append(list, s)
		}
	}
	return list
}

func (c *Config) machine() repair.Config {
	m := repair.DefaultConfig()
	m.Rungs, m.MinPeers = c.rungs(), c.MinPeers
	m.Lasting, m.Again, m.SilenceWait = c.Confirmation.Lasting, c.Confirmation.Again, c.Confirmation.SilenceWait
	m.Probation, m.Relapse = c.Probation.Duration, c.Probation.Suspicion
	m.TestAfterDrain, m.Retest = c.BurnIn.AfterDrain, c.BurnIn.Retest
	m.Breaker = repair.BreakerConfig{MaxNodes: c.Breaker.MaxNodes, MaxFraction: c.Breaker.MaxFraction, MaxPerHour: c.Breaker.MaxPerHour}
	return m
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	no := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	no(!wire.ValidName(c.Cluster), "`cluster` is %q, must name the cluster whose nodes are acted upon, as `k8s.cluster.name` of their records does", c.Cluster)
	no(c.PollInterval < time.Second, "`poll_interval` is %v, must be 1s or more", c.PollInterval)
	no(c.Audit.File != "" && (c.Audit.MaxMiB < 1 || c.Audit.MaxMiB > maxAuditMiB), "`audit::max_mib` is %d, must be from 1 to %d", c.Audit.MaxMiB, maxAuditMiB)
	no(c.MinPeers < 0, "`min_peers` is %d, must be 0 or more", c.MinPeers)
	no(c.Confirmation.Lasting <= 0, "`confirmation::lasting` is %v, must be more than 0", c.Confirmation.Lasting)
	no(c.Confirmation.Again <= 0, "`confirmation::again` is %v, must be more than 0", c.Confirmation.Again)
	no(c.Confirmation.SilenceWait < 0, "`confirmation::silence_wait` is %v, must be 0 or more", c.Confirmation.SilenceWait)
	no(c.Breaker.MaxNodes < 0, "`breaker::max_nodes` is %d, must be 0 or more", c.Breaker.MaxNodes)
	no(!(c.Breaker.MaxFraction >= 0 && c.Breaker.MaxFraction <= 1), "`breaker::max_fraction` is %v, must be from 0 to 1", c.Breaker.MaxFraction)
	no(c.Breaker.MaxPerHour < 0, "`breaker::max_per_hour` is %d, must be 0 or more", c.Breaker.MaxPerHour)
	no(c.Probation.Duration <= 0, "`probation::duration` is %v, must be more than 0", c.Probation.Duration)
	no(!(c.Probation.Suspicion > 0 && c.Probation.Suspicion <= 2), "`probation::suspicion` is %v, must be over 0 and at most 2", c.Probation.Suspicion)
	no(c.BurnIn.Retest < 0, "`burn_in::retest` is %v, must be 0 or more", c.BurnIn.Retest)
	no(!c.DryRun && c.State.StorageID == nil && len(c.rungs()) > 0, "`state::storage` is empty, must name a storage extension unless `dry_run` is true: the breaker has to outlive a restart")
	k, s, w := c.Kubernetes.Get(), c.Slurm.Get(), c.Webhook.Get()
	if k != nil {
		no(k.Namespace == "", "`kubernetes::namespace` is empty, must be the namespace of the Lease and of burn-in Jobs")
		no(k.Rungs.BurnIn && k.BurnInJob == "", "`kubernetes::burn_in_job` is empty, must name a file with a Job while `kubernetes::rungs::burn_in` is true")
		no(k.Rungs.Evict && !k.Rungs.Taint && !k.Rungs.Cordon, "`kubernetes::rungs::evict` is true, must be false unless `taint` or `cordon` keeps the pods from coming back")
	}
	if s != nil {
		no(s.Scontrol == "", "`slurm::scontrol` is empty, must name the program")
		no(s.Rungs.BurnIn && len(s.BurnInCommand) == 0, "`slurm::burn_in_command` is empty, must be a program while `slurm::rungs::burn_in` is true")
		no(s.BurnInTimeout <= 0, "`slurm::burn_in_timeout` is %v, must be more than 0", s.BurnInTimeout)
		no(k != nil && k.Rungs.BurnIn && s.Rungs.BurnIn, "`slurm::rungs::burn_in` is true, must be false while `kubernetes::rungs::burn_in` is true")
	}
	no(w != nil && w.Rungs.Notify && w.HTTP.Endpoint == "", "`webhook::http::endpoint` is empty, must be the URL of an Alertmanager's /api/v2/alerts")
	return errors.Join(errs...)
}
