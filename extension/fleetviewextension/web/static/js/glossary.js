// SPDX-License-Identifier: Apache-2.0
import { $, el } from './dom.js';

// TERMS explain the words of the page that are not everyday language.
export const TERMS = {
  'Needs attention': 'All that needs a person now, the worst first. The API (api/v1/attention) and “gpu-collector top” have the same list.',
  critical: 'Red. Work is lost now, or hardware is broken.',
  major: 'Amber. It costs work, or will soon.',
  minor: 'Without a colour. It is worth a look.',
  straggler: 'A node or rank that is slower than its peers for longer than chance explains.',
  'lost GPU': 'A GPU that does not answer its driver, or is no longer found.',
  'sick GPU': 'A GPU that answers, and whose health is degraded or unhealthy.',
  'missing node': 'A node that no longer reports to the gateway.',
  'group fault': 'Many nodes are slow at once, links between nodes are slow, or a job stands still.',
  'takes itself for a straggler': 'The node’s own agent says so. The gateway does not.',
  'burn-in': 'A test under full load, of an hour or more, which shows weak hardware.',
  'not judged': 'The gateway cannot compare the node now. A sentence says why.',
  communicator: 'Ranks that exchange data by NCCL.',
  stale: 'The gateway does not answer. The page shows its last data.',
  peers: 'Nodes of the same group, which do the same work. A node is compared with them, never with a fixed number.',
  group: 'The nodes that are compared with each other, such as those of one job and role.',
  Suspicion: 'The evidence against a node, as a share of what names a straggler. A straggler has 1 or more.',
  Score: 'How fast a node is, 0 to 1. At 1 it is as fast as its peers.',
  threshold: 'A node below it is a straggler if that lasts.',
  Rank: 'A process of a job. Also a node’s place among the most suspect nodes of its cluster.',
  'Judged by': 'What a node judges itself by: the fleet’s threshold, the last one that it got, or its own past.',
  episode: 'A time in which a node, a group, a communicator or a job stood out.',
  observed: 'A reason that holds for the node and for its peers too. It proves nothing.',
  degraded: 'A rule holds the GPU’s health down. Amber.',
  unhealthy: 'The GPU needs a reset, a reboot or service. Red.',
  idle: 'The GPUs of the node do no work. It is not compared.',
  calibrating: 'The node is new. Its first verdict follows.',
  'not known': 'Hatched on the map. The agent has not reported it.',
  'no answer': 'Hollow on the map. The node is missing, or the GPU is lost.',
  'no quorum': 'Too few nodes are active to compare them.',
  'usual range': 'The band in a plot. About nineteen of twenty healthy peers are in it.',
  Throughput: 'Work per second, in the job’s own unit.',
  Compute: 'SM clock under load, as a fraction of its maximum.',
  Interconnect: 'PCIe and NVLink, as a fraction of what the links can do.',
  'Own time': 'Time of a training step without the wait for other ranks, of the node’s slowest rank.',
  Communication: 'Share of time in collective operations. The slowest rank waits least.',
  'ECC c / u': 'Memory errors since the driver was loaded: corrected, and uncorrected.',
  Xids: 'Error codes of NVIDIA’s driver, and how often each came.',
  'throttled by': 'What holds the clocks down.',
  MIG: 'A part of a GPU that works like a GPU of its own.',
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
