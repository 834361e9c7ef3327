// SPDX-License-Identifier: Apache-2.0
import { $, el } from './dom.js';

// TERMS explain every word of the page that is not everyday language.
export const TERMS = {
  'Needs attention': 'Everything that needs a person now, the worst first. The API serves the same list at api/v1/attention, and `gpu-collector top` shows it.',
  critical: 'Red. Work is lost now, or hardware is broken. Act today.',
  major: 'Amber. It costs work, or will soon.',
  minor: 'An outline without colour. It is worth a look.',
  over: 'Grey. An episode that has ended.',
  Peers: 'Nodes of the same group that do the same work. A node is compared with them, never with a fixed number.',
  Group: 'The nodes that are compared with each other, such as those of one job and role.',
  straggler: 'A node that is slower than its peers for longer than chance explains.',
  Suspicion: 'The evidence against a node, as a share of what names a straggler. From 1 on it is one.',
  Score: 'Health score of a node, 0 to 1. At 1 it is as fast as its peers.',
  Threshold: 'Where evidence against a node begins to gather.',
  Rank: 'A process of a job. Also a node’s place among the most suspect ones of its cluster.',
  'No verdict': 'Why the gateway does not judge the node, and what ends that.',
  'Held down by': 'The rank or GPU of the node that stands out from its others.',
  'Judged by': 'The parameters that the node judges itself by: those of the fleet, the last ones it got, or its own past.',
  Gateway: 'The process that compares the nodes. It serves this page.',
  episode: 'A time in which a node, a group, a communicator or a job stood out.',
  Confidence: 'How sure the gateway is of an episode, after its evidence.',
  Observation: 'A reason that is true of the node and of its peers too. It proves nothing.',
  'GPU-h/h': 'GPU-hours that are lost in each hour. “Up to” marks a bound: a silent node may still work.',
  'Costs the job': 'The share of its time that a job loses because it waits for slow workers.',
  'lost GPU': 'A GPU that does not answer its driver, or is no longer found.',
  'sick GPU': 'A GPU that answers and whose health is degraded or unhealthy.',
  healthy: 'No rule of the health rubric holds the GPU down.',
  degraded: 'A rule holds the GPU’s health score down. Amber.',
  unhealthy: 'The GPU needs a reset, a reboot or service. Red.',
  down: 'The GPU does not answer.',
  missing: 'A node that the gateway has heard nothing of for a minute. What it does, nobody knows.',
  'group fault': 'Many nodes are slow at once, links between nodes are slow, or a job stands still.',
  'group incident': 'The whole group stands out, not single nodes.',
  panic: 'So many nodes are below the threshold that the threshold is suspect. It is held.',
  'no quorum': 'Too few nodes are active to compare them.',
  active: 'A node whose GPUs work.',
  idle: 'A node whose GPUs do no work. It is not compared.',
  calibrating: 'A node that has just come. Its first verdict comes within minutes.',
  'not known': 'Hatched on the map. Nothing was told of it.',
  'no answer': 'Hollow on the map. The node is missing or the GPU is lost.',
  'Step time': 'Seconds that a step of the training takes, of the slowest rank of the node.',
  Throughput: 'Work per second, in the job’s own unit.',
  Compute: 'SM clock under load, as a fraction of its maximum.',
  Interconnect: 'PCIe and NVLink, as a fraction of what the links can do.',
  CPU: 'Share of time in which no task waited for a CPU.',
  Kubernetes: 'What Kubernetes says of the node: whether it is ready, and its other conditions that are not false.',
  'CPU pressure': 'Share of time in which some task waited for a CPU.',
  'Memory pressure': 'Share of time in which some task waited for memory.',
  'IO pressure': 'Share of time in which some task waited for a disk or a network file system.',
  'CPU steal': 'Share of time that the hypervisor took from the node.',
  Load: 'Threads that ran or waited to, mean of a minute.',
  'Host memory': 'Share of the node’s memory in use.',
  Power: 'Watts of the GPUs.',
  Communication: 'Share of time in collective operations. Who computes longest waits least.',
  Memory: 'Free GPU memory, as a fraction.',
  'usual range': 'The band in a plot: about nineteen of twenty healthy peers are in it.',
  Temperature: 'Of each GPU, by its own sensor.',
  Health: 'Of each GPU, by the health rubric of the agent.',
  'GPU use': 'Mean share of time in which the GPUs were busy.',
  Job: 'The training job that the node works for, and its role in it.',
  GPUs: 'GPUs that reported, of those that the node should have.',
  temp: 'Temperature of the GPU.',
  'power W': 'Watts drawn, and the limit.',
  util: 'Share of time in which the GPU was busy.',
  tensor: 'Share of cycles in which the tensor cores worked.',
  'SM MHz': 'Clock of the streaming multiprocessors, and its maximum.',
  'memory GiB': 'Memory in use, and in all.',
  'ECC c / u': 'Memory errors since the driver was loaded: corrected, and uncorrected.',
  'NVLink errors': 'Replays, recoveries and CRC errors of all NVLinks.',
  'retired pages': 'Memory pages that were taken out of use, on GPUs up to Volta.',
  Xids: 'Error codes of NVIDIA’s driver, and how often each came.',
  'throttled by': 'What holds the clocks down.',
  ranks: 'Ranks of a job that name the GPU.',
  pods: 'Kubernetes pods that hold the GPU.',
  model: 'The board’s model.',
  UUID: 'The GPU’s identity. Its index may change at a restart.',
};

const KEYS = [['← → ↑ ↓', 'move over the map, at once'], ['Enter', 'open the node'], ['Esc', 'close'], ['/', 'search'], ['?', 'this help'], ['Back', 'closes the node, as the browser’s button does']];

// startHelp fills the dialog when it is first opened.
export function startHelp() {
  const box = $('help');
  const open = () => {
    if (!$('terms').firstChild) {
      $('terms').append(...Object.entries(TERMS).map(([term, text]) => el('div', {}, el('dt', {}, term), el('dd', {}, text))));
      $('help-keys').append(...KEYS.map(([key, text]) => el('div', {}, el('dt', {}, el('kbd', {}, key)), el('dd', {}, text))));
    }
    if (!box.open) box.showModal();
  };
  $('help-open').addEventListener('click', open);
  $('help-close').addEventListener('click', () => box.close());
  return open;
}
