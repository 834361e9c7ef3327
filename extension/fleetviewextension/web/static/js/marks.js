// SPDX-License-Identifier: Apache-2.0
import { DOWN } from './colours.js';

// Marks tell states by shape, so that colour is never alone. Each adds its outline
// to a path, in a square of 2r around x, y. `frame` also frames cells that are too
// small for a mark.
export const marks = {
  straggler: { label: 'straggler', fill: true, frame: true, path: (c, x, y, r) => { c.moveTo(x, y - r); c.lineTo(x + r, y + r); c.lineTo(x - r, y + r); c.closePath(); } },
  lost: { label: 'lost GPU', fill: true, frame: true, path: (c, x, y, r) => { c.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r); } },
  sick: { label: 'sick GPU', fill: true, path: (c, x, y, r) => { c.moveTo(x, y - r); c.lineTo(x + r, y); c.lineTo(x, y + r); c.lineTo(x - r, y); c.closePath(); } },
  missing: { label: 'missing', path: (c, x, y, r) => { c.moveTo(x - r, y - r); c.lineTo(x + r, y + r); c.moveTo(x + r, y - r); c.lineTo(x - r, y + r); } },
  idle: { label: 'idle', path: (c, x, y, r) => { c.moveTo(x - r, y); c.lineTo(x + r, y); } },
  calibrating: { label: 'calibrating', path: (c, x, y, r) => { c.moveTo(x + r, y); c.arc(x, y, r, 0, 2 * Math.PI); } },
};

// markOf returns the one mark that a node bears: of what is known, the most urgent.
export function markOf(n) {
  if (n.state === 'missing') return 'missing';
  if (n.gpuHealth?.includes(DOWN)) return 'lost';
  if (n.straggler) return 'straggler';
  if (n.health >= 2) return 'sick';
  if (n.state === 'idle' || n.state === 'calibrating') return n.state;
  return '';
}
