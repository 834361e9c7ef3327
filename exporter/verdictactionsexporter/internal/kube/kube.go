// SPDX-License-Identifier: Apache-2.0

// Package kube acts upon the nodes of a Kubernetes cluster. It changes only its own keys
// and `spec.unschedulable`, and undoes only what still reads as it left it.
package kube // import "github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/kube"

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// Our keys on a node. The chart's ValidatingAdmissionPolicy names them too.
const (
	Domain = "actions.gpu-collector.io"
	// MarksKey is the annotation with what we did: JSON, step to the value that we set.
	MarksKey = Domain + "/marks"
	// CaseKey is the annotation with the case of the marks.
	CaseKey = Domain + "/case"
	// StateKey is the label of the step `label`.
	StateKey = Domain + "/state"
	// TaintKey is the key of the taint.
	TaintKey = Domain + "/suspect"
	// IntentKey is the annotation of a burn-in's Job with the step's id.
	IntentKey = Domain + "/intent"
	// NodeKey is the label of a burn-in's Job and pods.
	NodeKey = Domain + "/burn-in"
	// HistoryKey is the annotation of the Lease with what the next leader has to know.
	HistoryKey = Domain + "/history"
	// ConditionType is the node condition of the step `condition`.
	ConditionType = "GpuStraggler"
)

const name = "kubernetes"

// pollAgain is when an eviction is tried again while pods are left.
const pollAgain = 10 * time.Second

// Settings of the driver.
type Settings struct {
	// Namespace of burn-in Jobs.
	Namespace string
	// Job is the template of a burn-in; nil for none.
	Job *batchv1.Job
}

// Driver acts upon Kubernetes.
type Driver struct {
	client  kubernetes.Interface
	devices Devices
	set     Settings
	now     func() time.Time
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver.
func New(client kubernetes.Interface, devices Devices, set Settings, now func() time.Time) *Driver {
	return &Driver{client: client, devices: devices, set: set, now: now}
}

// Name implements driver.Driver.
func (d *Driver) Name() string { return name }

// Do implements driver.Driver.
func (d *Driver) Do(ctx context.Context, p *repair.Intent, dryRun bool) repair.Result {
	var r repair.Result
	var err error
	switch p.Step {
	case repair.StepEvent:
		r, err = d.event(ctx, p, dryRun)
	case repair.StepCondition:
		r, err = d.condition(ctx, p, dryRun)
	case repair.StepLabel, repair.StepTaint, repair.StepCordon:
		r, err = d.mark(ctx, p, dryRun)
	case repair.StepDeviceTaint:
		r, err = d.deviceTaint(ctx, p, dryRun)
	case repair.StepEvict:
		r, err = d.evict(ctx, p, dryRun)
	case repair.StepBurnIn:
		r, err = d.burnIn(ctx, p, dryRun)
	default:
		err = fmt.Errorf("kubernetes has no step %q", p.Step)
	}
	if apierrors.IsNotFound(err) && p.Undo {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleNoSuchNode, Driver: name, Text: err.Error()}
	}
	if err != nil {
		return driver.Failed(name, err)
	}
	r.Driver = name
	return r
}

// change is what a step makes of a node: a merge patch, and how its object reads.
type change struct {
	patch         map[string]any // nil: nothing to do
	before, after string
	refused       repair.Rule
	text          string
	status        bool // the patch is of the status, whose lists have keys
}

// patch reads the node, and writes what the step makes of it. The patch carries the
// version that was read, so that a change in between is not overwritten.
func (d *Driver) patch(ctx context.Context, node string, dryRun bool, make func(*corev1.Node) (change, error)) (r repair.Result, err error) {
	var last error
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		defer func() { last = err }()
		n, err := d.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c, err := make(n)
		if err != nil {
			return err
		}
		r = repair.Result{Outcome: repair.Taken, Before: c.before, After: c.after, Text: c.text}
		if c.refused != "" {
			r.Outcome, r.Rule, r.After = repair.Refused, c.refused, c.before
		}
		if c.patch == nil || dryRun {
			return nil
		}
		metadata, _ := c.patch["metadata"].(map[string]any)
		if metadata == nil {
			metadata = map[string]any{}
			c.patch["metadata"] = metadata
		}
		metadata["resourceVersion"] = n.ResourceVersion
		data, err := json.Marshal(c.patch)
		if err != nil {
			return err
		}
		kind, sub := types.MergePatchType, []string(nil)
		if c.status {
			kind, sub = types.StrategicMergePatchType, []string{"status"}
		}
		_, err = d.client.CoreV1().Nodes().Patch(ctx, node, kind, data, metav1.PatchOptions{FieldManager: "gpu-collector-actions"}, sub...)
		return err
	})
	if err == nil { // RetryOnConflict takes a call that was cut for none
		err = last
	}
	return r, err
}

// marks reads what we did to a node.
func marks(n *corev1.Node) map[repair.Step]string {
	m := map[repair.Step]string{}
	_ = json.Unmarshal([]byte(n.Annotations[MarksKey]), &m) // somebody else's text says nothing
	return m
}

// annotate is the merge patch's part that keeps the marks.
func annotate(m map[repair.Step]string, caseID string) map[string]any {
	if len(m) == 0 {
		return map[string]any{MarksKey: nil, CaseKey: nil}
	}
	text, _ := json.Marshal(m) // of strings
	return map[string]any{MarksKey: string(text), CaseKey: caseID}
}
