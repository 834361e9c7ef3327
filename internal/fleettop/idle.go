// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// idlePods asks for the pods that hold GPUs and do not use them, those that hold up most.
func (s *clientSource) idlePods(ctx context.Context, clusters *[]string) (*fleetclient.IdlePodPage, error) {
	size := int64(maxEpisodes)
	answer, err := s.client.ListIdlePodsWithResponse(ctx, &fleetclient.ListIdlePodsParams{Cluster: clusters, Limit: &size})
	switch {
	case err != nil:
		return nil, err
	case answer.JSON200 == nil:
		return nil, fleetclient.AnswerError(answer.StatusCode(), answer.Body)
	}
	return answer.JSON200, nil
}

// idleMinutes is the API's own bound, below which a pause is none.
const idleMinutes = 10

// idleLines are all lines of the list of pods that hold GPUs and do not use them.
func (m Model) idleLines() []string {
	if m.fleet == nil || m.fleet.Idle == nil {
		return []string{"asking for the pods that hold idle GPUs ..."}
	}
	page := m.fleet.Idle
	if page.Total == 0 {
		return []string{
			fmt.Sprintf("no pod holds a GPU that has been idle for %d minutes", idleMinutes),
			m.paint(faint, "pods are known where agents ask the kubelet: hw.gpu.allocation"),
		}
	}
	var gpus int64
	var hours float64
	for i := range page.Jobs {
		gpus, hours = gpus+page.Jobs[i].GpusIdle, hours+page.Jobs[i].GPUHoursIdle
	}
	lines := []string{m.paint(bold, fmt.Sprintf("HELD, NOT USED for %d minutes and more: pods %d, GPUs %d, GPU-hours %.1f", idleMinutes, page.Total, gpus, hours)), ""}
	lines = append(lines, m.idleJobRows(page.Jobs)...)
	lines = append(lines, "")
	lines = append(lines, m.idlePodRows(page.Pods)...)
	if more := page.Total - int64(len(page.Pods)); more > 0 {
		lines = append(lines, m.paint(faint, fmt.Sprintf("and %d more: ask api/v1/pods/idle", more)))
	}
	return lines
}

func (m Model) idleJobRows(jobs []fleetclient.IdleJob) []string {
	const figure = 7
	name := min(max(16, m.width-3*figure), 60)
	lines := []string{m.paint(bold, m.cells([]cell{{"JOB", name, false, ""}, {"PODS", figure, true, ""}, {"GPUS", figure, true, ""}, {"HOURS", figure, true, ""}}))}
	for i := range jobs {
		j := &jobs[i]
		lines = append(lines, m.cells([]cell{
			{middle(m.withCluster(j.Cluster, jobName(j.JobID)), name-1), name, false, ""},
			{strconv.FormatInt(j.Pods, 10), figure, true, ""},
			{strconv.FormatInt(j.GpusIdle, 10), figure, true, ""},
			{fmt.Sprintf("%.1f", j.GPUHoursIdle), figure, true, ""},
		}))
	}
	return lines
}

// idlePodRows share the room of the names: pod and node are longer than a job's.
func (m Model) idlePodRows(pods []fleetclient.IdlePod) []string {
	const idleGPUs, since, hours = 10, 6, 7
	room := max(30, m.width-idleGPUs-since-hours)
	pod, node := room*45/100, room*3/10
	job := room - pod - node
	row := func(name, on, of, gpus, age, lost string) string {
		return m.cells([]cell{
			{middle(name, pod-1), pod, false, ""},
			{middle(on, node-1), node, false, ""},
			{middle(of, job-1), job, false, ""},
			{gpus, idleGPUs, true, ""},
			{age, since, true, ""},
			{lost, hours, true, ""},
		})
	}
	lines := []string{m.paint(bold, row("POD", "NODE", "JOB", "IDLE", "FOR", "HOURS"))}
	for i := range pods {
		p := &pods[i]
		lines = append(lines, row(printable(p.Namespace)+"/"+printable(p.Pod), m.withCluster(p.Cluster, printable(p.Node)), jobName(or(p.JobID, "")),
			fmt.Sprintf("%d of %d", len(p.Gpus), p.GpusHeld), m.idleFor(p), fmt.Sprintf("%.1f", p.GPUHoursIdle)))
	}
	return lines
}

// idleFor is how long the first of a pod's GPUs has done nothing; with a plus where that
// began before the gateway heard of it.
func (m Model) idleFor(p *fleetclient.IdlePod) string {
	var longest *fleetclient.IdleGPU
	for i := range p.Gpus {
		if g := &p.Gpus[i]; longest == nil || g.IdleSeconds > longest.IdleSeconds {
			longest = g
		}
	}
	if longest == nil {
		return "-"
	}
	text := age(time.Duration(longest.IdleSeconds*float64(time.Second)) + m.o.Now().Sub(m.fleet.At))
	if or(longest.SinceBefore, false) {
		text += "+"
	}
	return text
}

// withCluster puts the cluster before a name where there are several.
func (m Model) withCluster(cluster, name string) string {
	if m.fleet.Summary.Clusters > 1 {
		return printable(cluster) + "/" + name
	}
	return name
}

func jobName(id string) string {
	if id == "" {
		return "no job"
	}
	return printable(id)
}
