// SPDX-License-Identifier: Apache-2.0
import { $, el } from './dom.js';

// TERMS explain the words of the page that are not everyday language.
export const TERMS = {
  'Needs attention': 'All that needs a person now, the worst first. The API (api/v1/attention) and “gpu-collector top” tell the same list.',
  critical: 'Red. Work is lost now, or hardware is broken.',
  major: 'Amber. It costs work, or will soon.',
  minor: 'Without a colour. It is worth a look.',
  over: 'Grey. An episode that has ended.',
  'GPU-h/h': 'GPU-hours that are lost in each hour. “Up to” marks a bound: a silent node may still work.',
  straggler: 'A node or rank that is slower than its peers for longer than chance explains.',
  'lost GPU': 'A GPU that does not answer its driver, or is no longer found.',
  'sick GPU': 'A GPU that answers, and whose health is degraded or unhealthy.',
  'missing node': 'A node that the gateway no longer hears. Nobody knows what it does.',
  'group fault': 'Many nodes are slow at once, links between nodes are slow, or a job stands still.',
  'takes itself for a straggler': 'The node’s own agent says so. The gateway does not.',
  'burn-in': 'A test under full load, of an hour or more, which shows weak hardware.',
  'not judged': 'Too little is known to say whether the node is a straggler. The list says what is missing.',
  communicator: 'Ranks that exchange data by NCCL.',
  live: 'The page shows news as they happen.',
  stale: 'The gateway does not answer. The page shows what it last said.',
  peers: 'Nodes of the same group, which do the same work. A node is compared with them, never with a fixed number.',
  group: 'The nodes that are compared with each other, such as those of one job and role.',
  Suspicion: 'The evidence against a node, as a share of what names a straggler. A straggler has 1 or more.',
  Score: 'How fast a node is, 0 to 1. At 1 it is as fast as its peers.',
  threshold: 'A node below it is a straggler if that lasts.',
  'Not compared': 'The gateway does not judge the node now, and says why.',
  Rank: 'A process of a job. Also a node’s place among the most suspect nodes of its cluster.',
  'Judged by': 'What a node judges itself by: the fleet’s threshold, the last one that it got, or its own past.',
  Gateway: 'The process that compares the nodes. It serves this page.',
  episode: 'A time in which a node, a group, a communicator or a job stood out.',
  Confidence: 'How sure the gateway is of an episode, by its evidence.',
  observed: 'A reason that holds for the node and for its peers too. It proves nothing.',
  healthy: 'No rule holds the GPU’s health down.',
  degraded: 'A rule holds the GPU’s health down. Amber.',
  unhealthy: 'The GPU needs a reset, a reboot or service. Red.',
  down: 'The GPU does not answer. Red.',
  missing: 'The gateway no longer hears the node.',
  active: 'The GPUs of the node work.',
  idle: 'The GPUs of the node do no work. It is not compared.',
  calibrating: 'The node has just come. Its first verdict follows.',
  'not known': 'Hatched on the map. Nothing was told of it.',
  'no answer': 'Hollow on the map. The node is missing, or the GPU is lost.',
  'group incident': 'The whole group stands out, not single nodes.',
  'no quorum': 'Too few nodes are active to compare them.',
  'usual range': 'The band in a plot. About nineteen of twenty healthy peers are in it.',
  'Step time': 'Seconds that a training step takes.',
  Throughput: 'Work per second, in the job’s own unit.',
  Compute: 'SM clock under load, as a fraction of its maximum.',
  Interconnect: 'PCIe and NVLink, as a fraction of what the links can do.',
  CPU: 'Share of time in which no task waited for a CPU.',
  'CPU pressure': 'Share of time in which some task waited for a CPU.',
  Power: 'Watts of the GPUs.',
  Memory: 'Free GPU memory, as a fraction.',
  'Own time': 'Time of a training step without the wait for other ranks, of the node’s slowest rank.',
  Communication: 'Share of time in collective operations. The slowest rank waits least.',
  Temperature: 'Of each GPU, by its own sensor.',
  Health: 'Of each GPU, by the rules of its agent.',
  'GPU use': 'Share of time in which the GPUs were busy.',
  Job: 'The job that the node works for, and its role in it.',
  GPUs: 'GPUs that report, of those that the node should have.',
  'held by': 'The jobs and pods that have the GPU.',
  temp: 'Temperature of the GPU.',
  'power W': 'Watts drawn, and the limit.',
  util: 'Share of time in which the GPU was busy.',
  tensor: 'Share of cycles in which the tensor cores worked.',
  'SM MHz': 'Clock of the streaming multiprocessors, and its maximum.',
  'memory GiB': 'Memory in use, and in all.',
  'ECC c / u': 'Memory errors since the driver was loaded: corrected, and uncorrected.',
  Xids: 'Error codes of NVIDIA’s driver, and how often each came.',
  'throttled by': 'What holds the clocks down.',
  model: 'The board’s model.',
  MIG: 'A part of a GPU that works like a GPU of its own.',
  UUID: 'The GPU’s identity. Its index may change at a restart.',
};

const KEYS = { '← → ↑ ↓': 'select a node on the map, or a row of the list', Enter: 'open the node', Esc: 'close it', '/': 'search', '?': 'this help' };

// startHelp fills the dialog when it is first opened.
export function startHelp() {
  const box = $('help');
  const list = (id, of, mark) => $(id).append(...Object.entries(of).map(([term, text]) => el('div', {}, el('dt', {}, mark ? el(mark, {}, term) : term), el('dd', {}, text))));
  const open = () => {
    if (!$('terms').firstChild) {
      list('help-keys', KEYS, 'kbd');
      list('terms', TERMS);
    }
    if (!box.open) box.showModal();
  };
  $('help-open').addEventListener('click', open);
  $('help-close').addEventListener('click', () => box.close());
  return open;
}
