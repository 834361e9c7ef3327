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
  communication: ['Communication', 'share of time in collective operations, of the rank that waits least: it computes longest'],
  own_time: ['Own time', 'seconds of a step without the wait for others, of the slowest rank'],
  memory: ['Memory', 'free GPU memory, fraction'],
};

// inSteps turns a throughput of steps into the seconds of a step. unit is that of the
// throughput, as the API tells it.
export function inSteps({ t, columns }, unit) {
  if (unit !== '{step}/s' || !columns.throughput) return { t, columns };
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
