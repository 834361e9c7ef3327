// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/kube"
	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/slurm"
	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/webhook"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// connect makes the drivers, and the Lease where it elects the active instance.
func (a *actor) connect(ctx context.Context, host component.Host) error {
	a.route = map[repair.Step]driver.Driver{}
	if w := a.cfg.Webhook.Get(); w != nil {
		client, err := w.HTTP.ToClient(ctx, host.GetExtensions(), a.set.TelemetrySettings)
		if err != nil {
			return fmt.Errorf("`webhook::http`: %w", err)
		}
		a.use(webhook.New(client, w.HTTP.Endpoint, a.cfg.Cluster, string(w.Secret), a.now), repair.StepNotify)
	}
	if s := a.cfg.Slurm.Get(); s != nil {
		steps := []repair.Step{repair.StepDrain}
		if s.Rungs.BurnIn {
			steps = append(steps, repair.StepBurnIn)
		}
		a.use(slurm.New(slurm.Settings{Scontrol: s.Scontrol, BurnIn: s.BurnInCommand, BurnInTimeout: s.BurnInTimeout}), steps...)
	}
	if k := a.cfg.Kubernetes.Get(); k != nil {
		client, config, err := k.client()
		if err != nil {
			return err
		}
		job, err := k.job()
		if err != nil {
			return err
		}
		var devices kube.Devices
		if k.Rungs.DeviceTaint {
			if devices.Client, err = dynamic.NewForConfig(config); err != nil {
				return fmt.Errorf("`kubernetes`: %w", err)
			}
			devices.Discovery = client.Discovery()
		}
		steps := []repair.Step{
			repair.StepEvent, repair.StepCondition, repair.StepLabel, repair.StepTaint, repair.StepDeviceTaint, repair.StepCordon, repair.StepEvict,
		}
		if k.Rungs.BurnIn {
			steps = append(steps, repair.StepBurnIn)
		}
		a.use(kube.New(client, devices, kube.Settings{Namespace: k.Namespace, Job: job}, a.now), steps...)
		if k.Lease != "" && !a.cfg.DryRun { // a Lease is a write, too
			// A client has a limit of rate. Looks at many nodes must not hold up the renewal.
			leases, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("`kubernetes`: %w", err)
			}
			a.lease = newLease(leases.CoordinationV1().Leases(k.Namespace), k.Lease, a.times, &a.acting, a.tellLead)
		}
	}
	return nil
}

func (a *actor) use(d driver.Driver, steps ...repair.Step) {
	a.drivers = append(a.drivers, d)
	for _, s := range steps {
		a.route[s] = d
	}
}

func (k *KubernetesConfig) client() (kubernetes.Interface, *rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", k.Kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("`kubernetes::kubeconfig`: %w", err)
	}
	config.UserAgent, config.Timeout = "gpu-collector-actions", 30*time.Second
	config.QPS, config.Burst = 20, 30            // those of kube-controller-manager
	config.ContentType = runtime.ContentTypeJSON // as patches are: an audit log of the API server reads it
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("`kubernetes`: %w", err)
	}
	return client, config, nil
}

// job reads the template of a burn-in, nil when there is none.
func (k *KubernetesConfig) job() (*batchv1.Job, error) {
	if k.BurnInJob == "" {
		return nil, nil
	}
	text, err := os.ReadFile(k.BurnInJob)
	if err != nil {
		return nil, fmt.Errorf("`kubernetes::burn_in_job`: %w", err)
	}
	job := new(batchv1.Job)
	if err := yaml.UnmarshalStrict(text, job); err != nil {
		return nil, fmt.Errorf("`kubernetes::burn_in_job` %s: %w", k.BurnInJob, err)
	}
	if job.Kind != "Job" || len(job.Spec.Template.Spec.Containers) == 0 {
		return nil, fmt.Errorf("`kubernetes::burn_in_job` %s has the kind %q, must be a Job with a container", k.BurnInJob, job.Kind)
	}
	return job, nil
}

func (a *actor) tellLead(ctx context.Context, t *term) {
	select {
	case a.lead <- t:
	case <-ctx.Done():
	case <-a.stopped:
	}
}

// observe publishes the gauges.
func (a *actor) observe() error {
	err := a.telemetry.RegisterExporterVerdictActionsBreakerOpenCallback(func(_ context.Context, o metric.Int64Observer) error {
		open := int64(0)
		if a.open.Load() && a.active.Load() { // a replica that waits does not know of a reset
			open = 1
		}
		o.Observe(open)
		return nil
	})
	if err != nil {
		return err
	}
	return a.telemetry.RegisterExporterVerdictActionsCasesCallback(func(_ context.Context, o metric.Int64Observer) error {
		of := a.byState.Load()
		for _, s := range []repair.State{repair.Suspect, repair.Confirmed, repair.KeptOff, repair.UnderRepair, repair.OnProbation} {
			n := int64(0)
			if of != nil {
				n = (*of)[s]
			}
			o.Observe(n, metric.WithAttributes(attribute.String("state", string(s))))
		}
		return nil
	})
}
