// SPDX-License-Identifier: Apache-2.0

// titles are those of the plots, with their units.
export const titles = {
  step: ['Step time', 'seconds of a training step, lower is faster'],
  score: ['Score', '1 is as fast as the peers'],
  throughput: ['Throughput', 'work per second, in the job’s own unit'],
  compute: ['Compute', 'SM clock under load, fraction of its maximum'],
  interconnect: ['Interconnect', 'PCIe and NVLink, fraction of what the links can do'],
  cpu: ['CPU', 'share of time in which no task waited for a CPU'],
  power: ['Power', 'watts of the GPUs'],
  communication: ['Communication', 'share of time in collective operations: who computes longest waits least'],
  memory: ['Memory', 'free GPU memory, fraction'],
};

// inSteps turns the throughput into the seconds of a step, where it is one step over them:
// `step` is what the ranks say now. The plot of the throughput would say the same.
export function inSteps({ t, columns }, step) {
  const now = columns.throughput?.findLast((v) => v > 0);
  if (!step || !now || Math.abs(step * now - 1) > 0.2) return { t, columns };
  const out = { ...columns };
  for (const name of ['throughput', 'throughput:median', 'throughput:threshold']) {
    if (columns[name]) out[name.replace('throughput', 'step')] = columns[name].map((v) => (v > 0 ? 1 / v : null));
    delete out[name];
  }
  // A spread is a share of the level, and so it is of the inverse.
  if (columns['throughput:scale']) out['step:scale'] = columns['throughput:scale'];
  delete out['throughput:scale'];
  return { t, columns: out };
}
