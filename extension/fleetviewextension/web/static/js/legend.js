// SPDX-License-Identifier: Apache-2.0
import { css, HEALTH, modes, palette, step, stepCss } from './colours.js';
import { el, fill } from './dom.js';
import { celsius, fixed } from './format.js';
import { marks } from './marks.js';
import { theme } from './theme.js';

// describe says a node in one line, for the tooltip and for screen readers.
export function describe(n, named) {
  if (!n) return '';
  const parts = [n.node];
  if (n.straggler) parts.push('straggler');
  parts.push(n.state || 'state unknown');
  if (n.score !== undefined) parts.push(`score ${fixed(n.score)}`);
  if (n.suspicion !== undefined) parts.push(`suspicion ${fixed(n.suspicion)}`);
  if (n.health > 0) parts.push(HEALTH[n.health]);
  if (n.celsius !== undefined) parts.push(celsius(n.celsius));
  if (n.gpuHealth.length) parts.push(`${n.gpuHealth.length} GPUs`);
  if (named) parts.push(`named: GPU ${[...named.keys()].sort((a, b) => a - b).join(', ')}`);
  return parts.join(' · ');
}

function canvas(w, h, draw) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  const c = el('canvas', { width: w * ratio, height: h * ratio, 'aria-hidden': 'true' });
  [c.style.width, c.style.height] = [`${w}px`, `${h}px`];
  const ctx = c.getContext('2d');
  ctx.scale(ratio, ratio);
  draw(ctx, w, h);
  return c;
}

function scale(m, p) {
  if (m.steps) {
    return m.steps.map(([label, t]) => el('span', { className: 'key' }, canvas(14, 14, (c, w, h) => {
      c.fillStyle = stepCss(p, t);
      c.fillRect(0, 0, w, h);
    }), label));
  }
  return el('span', { className: 'key' }, m.low, canvas(120, 12, (c, w, h) => {
    for (let x = 0; x < w; x++) {
      c.fillStyle = css(p.rgb[step(x / (w - 1))]);
      c.fillRect(x, 0, 1, h);
    }
  }), m.high);
}

// drawLegend says what the colours and the marks mean.
export function drawLegend(box, mode) {
  const p = palette(theme());
  const m = modes[mode];
  fill(box,
    el('strong', {}, m.title), scale(m, p),
    el('span', { className: 'key' }, canvas(14, 14, (c, w, h) => {
      c.fillStyle = p.empty;
      c.fillRect(0, 0, w, h);
      c.strokeStyle = p.line;
      for (let x = -10; x < w; x += 5) { c.beginPath(); c.moveTo(x, h); c.lineTo(x + h, 0); c.stroke(); }
    }), 'not known'),
    el('span', { className: 'key' }, canvas(14, 14, (c, w, h) => {
      c.fillStyle = p.empty;
      c.fillRect(0, 0, w, h);
      c.strokeStyle = p.line;
      c.strokeRect(0.5, 0.5, w - 1, h - 1);
    }), 'no answer'),
    el('span', { className: 'gap' }),
    ['critical', 'major'].map((level) => el('span', { className: 'key' }, canvas(14, 14, (c, w, h) => {
      c.fillStyle = p[level];
      c.fillRect(1, 1, w - 2, h - 2);
    }), level)),
    Object.values(marks).map((mark) => el('span', { className: 'key' }, canvas(14, 14, (c) => {
      c.strokeStyle = c.fillStyle = p.ink;
      c.lineWidth = 1.75;
      c.beginPath();
      mark.path(c, 7, 7, 4.5);
      if (mark.fill) c.fill(); else c.stroke();
    }), mark.label)),
  );
}
