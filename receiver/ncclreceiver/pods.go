// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"cmp"
	"strings"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

// pod is what is known of a rank's.
type pod struct {
	uid, name, namespace string
}

func (p pod) compare(o pod) int {
	return cmp.Or(strings.Compare(p.namespace, o.namespace), strings.Compare(p.name, o.name), strings.Compare(p.uid, o.uid))
}

func (p pod) describe(rb *metadata.ResourceBuilder) {
	if p.uid != "" {
		rb.SetK8sPodUID(p.uid)
	}
	if p.name != "" {
		rb.SetK8sPodName(p.name)
		rb.SetK8sNamespaceName(p.namespace)
	}
}

// pods parts the ranks of a job by their pods. The kubelet names them, as the receiver
// nvml has heard from it, where one pod alone has the GPU.
func (s *ncclScraper) pods(job []*file) map[pod][]*file {
	all := map[pod][]*file{}
	for _, f := range job {
		of := pod{uid: f.of.pod}
		if g, known := s.procs.gpus.Of(f.of.pid); known {
			for _, c := range g.Containers {
				if of.name != "" && (of.name != c.Pod || of.namespace != c.Namespace) {
					of.name, of.namespace = "", ""
					break
				}
				of.name, of.namespace = c.Pod, c.Namespace
			}
		}
		all[of] = append(all[of], f)
	}
	return all
}
