// SPDX-License-Identifier: Apache-2.0
import { DOWN, labelOn, modes, pixel, step } from './colours.js';
import { keyOf } from './fleet.js';
import { isolated, legible } from './format.js';
import { grid } from './layout.js';
import { markOf, marks } from './marks.js';
import { brief, omit } from './names.js';

// Painter draws the part of a layout that is in view. Cells are pixels written
// straight into an image: 40,000 GPUs cost a few milliseconds that way, however
// slow the browser's canvas is.
export class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext('2d', { alpha: false });
  }

  resize(width, height, ratio) {
    this.ratio = ratio;
    this.canvas.width = Math.max(1, Math.round(width * ratio));
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.image = this.ctx.createImageData(this.canvas.width, this.canvas.height);
    this.px = new Uint32Array(this.image.data.buffer);
  }

  // paint draws the layout `l` of the fleet's nodes from `top` down.
  paint(l, fleet, top, mode, p) {
    const { ctx, ratio } = this;
    const height = this.canvas.height / ratio;
    this.px.fill(p.backPx);
    const marked = {};
    this.frames = []; // around GPUs that are named
    const texts = [];
    const m = modes[mode];
    let group = 0;
    for (let i = 0; i < l.keys.length; i++) {
      while (i >= l.groups[group].from + l.groups[group].count) group++;
      const y = l.y[i] - top;
      if (y > height || y + l.ch < 0) continue;
      const n = fleet.nodes.get(l.keys[i]);
      if (!n) continue;
      this.#cell(n, l.x[i], y, l.cw, l.ch, m, p, fleet.named.get(n.key));
      const mark = markOf(n);
      if (mark) (marked[`${mark} ${fleet.levels.get(n.key) ?? ''}`] ??= []).push([l.x[i], y]);
      if (l.cw >= 64) texts.push([n, l.x[i], y, l.groups[group].names]);
    }
    ctx.putImageData(this.image, 0, 0);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#titles(l, fleet, top, height, p);
    for (const [level, ...box] of this.frames) {
      ctx.lineWidth = 2;
      ctx.strokeStyle = p[level] ?? p.ink;
      ctx.strokeRect(...box);
    }
    // With room for a mark in each cell, neighbours have names of one form.
    for (const [n, x, y, names] of texts) this.#label(n, names, x, y, l.cw - 26, l, m, p);
    for (const [what, list] of Object.entries(marked)) {
      const [mark, level] = what.split(' ');
      this.#marks(marks[mark], list, l, p, p[level] ?? p.ink);
    }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
  }

  #cell(n, x, y, w, h, m, p, named) {
    const missing = n.state === 'missing';
    const count = n.gpuHealth.length;
    const whole = m.node(n);
    if (missing || count === 0) {
      this.#fill(x, y, w, h, missing ? NaN : whole, m, p, missing);
      return;
    }
    if (m.gpu && w >= 64) {
      // The name has ground of its own below GPUs of different shades.
      this.#fill(x, y + h - strip(h), w, strip(h), NaN, m, p, false, true);
      h -= strip(h);
    }
    const { cols, rows } = grid(count, w, h);
    // A line between GPUs of different shades, where there is room for one.
    const gap = !m.gpu ? 0 : w / cols >= 6 && h / rows >= 6 ? 1 : w / cols >= 3 && h / rows >= 3 ? 0.5 : 0;
    for (let i = 0; i < count; i++) {
      const gx = x + Math.floor(((i % cols) * w) / cols);
      const gw = x + Math.floor(((i % cols + 1) * w) / cols) - gx - (i % cols === cols - 1 ? 0 : gap);
      const r = Math.floor(i / cols);
      const gy = y + Math.floor((r * h) / rows);
      const gh = y + Math.floor(((r + 1) * h) / rows) - gy - (r === rows - 1 ? 0 : gap);
      const down = n.gpuHealth[i] === DOWN;
      this.#fill(gx, gy, gw, gh, m.gpu ? m.gpu(n, i) : whole, m, p, down && !m.steps);
      const level = named?.get(n.gpuIndex[i]);
      if (level !== undefined && gw >= 5 && gh >= 5) this.frames.push([level, gx + 1, gy + 1, gw - 2, gh - 2]);
    }
  }

  // fill paints a rectangle: shaded, hatched where nothing is known, hollow
  // where nobody answers.
  #fill(x, y, w, h, t, m, p, hollow, bare) {
    const { px, ratio } = this;
    const cw = this.canvas.width;
    const x0 = Math.max(0, Math.round(x * ratio));
    const x1 = Math.min(cw, Math.round((x + w) * ratio));
    const y0 = Math.max(0, Math.round(y * ratio));
    const y1 = Math.min(this.canvas.height, Math.round((y + h) * ratio));
    const unknown = Number.isNaN(t);
    const colour = hollow || unknown ? p.emptyPx : pixel(p, m, t);
    // A loop: for a few pixels each, the call of fill costs more than they do.
    for (let r = y0; r < y1; r++) {
      for (let c = r * cw + x0, end = r * cw + x1; c < end; c++) px[c] = colour;
    }
    if (hollow) {
      px.fill(p.linePx, y0 * cw + x0, y0 * cw + x1);
      if (y1 > y0) px.fill(p.linePx, (y1 - 1) * cw + x0, (y1 - 1) * cw + x1);
      for (let r = y0; r < y1; r++) px[r * cw + x0] = px[r * cw + x1 - 1] = p.linePx;
    } else if (unknown && !bare) {
      const pitch = Math.round(5 * ratio);
      for (let r = y0; r < y1; r++) {
        for (let c = x0 + ((pitch - ((x0 + r) % pitch)) % pitch); c < x1; c += pitch) px[r * cw + c] = p.linePx;
      }
    }
  }

  #titles(l, fleet, top, height, p) {
    const { ctx } = this;
    ctx.textBaseline = 'alphabetic';
    ctx.textAlign = 'left';
    for (const c of l.clusters) {
      if (c.y - top >= height || c.y + 24 <= top) continue;
      const title = c.cluster ? isolated(c.cluster) : '(no cluster)';
      ctx.font = '600 13px system-ui, sans-serif';
      ctx.fillStyle = p.ink;
      ctx.fillText(title, c.x, c.y - top + 15);
      if (!c.names?.begin || l.cw < 64) continue;
      const used = width(ctx, title);
      ctx.font = '11px system-ui, sans-serif';
      ctx.fillStyle = p.soft;
      ctx.fillText(`${isolated(c.names.begin)}…`, c.x + used + 8, c.y - top + 15);
    }
    ctx.font = '11px system-ui, sans-serif';
    for (const g of l.groups) {
      if (g.y - top > height || g.y + 17 < top) continue;
      const view = fleet.groups.get(keyOf(g.cluster, g.group));
      ctx.fillStyle = p.soft;
      const notes = [g.group ? isolated(g.title) : 'no group', g.count];
      if (view?.incident) notes.push('group fault');
      if (view && !view.quorum_met) notes.push('no quorum');
      if (view?.unjudged_text) notes.push(view.unjudged_text);
      const text = notes.join(' · ');
      ctx.fillText(width(ctx, text) <= g.w ? text : fit(ctx, [g.title || 'no group'], g.w), g.x, g.y - top + 11);
    }
  }

  #label(n, names, x, y, room, l, m, p) {
    const { ctx } = this;
    const whole = omit(n.node, names);
    const name = [whole, brief(whole, names)];
    const unknown = n.state === 'missing' || Number.isNaN(m.node(n));
    ctx.fillStyle = unknown || m.steps ? p.ink : labelOn(p, step(m.node(n)));
    const big = l.ch >= 44;
    const dense = m.gpu && n.gpuHealth.length > 0 && n.state !== 'missing';
    if (dense) ctx.fillStyle = p.ink;
    ctx.font = big ? '600 12px system-ui, sans-serif' : '11px system-ui, sans-serif';
    const text = m.text(n);
    if (dense) {
      const used = width(ctx, text);
      ctx.fillText(text, x + l.cw - used - 4, y + l.ch - 4);
      ctx.fillText(fit(ctx, name, l.cw - used - 14), x + 4, y + l.ch - 4);
      return;
    }
    ctx.fillText(fit(ctx, name, room), x + 7, y + (big ? 18 : 13));
    ctx.font = big ? '13px system-ui, sans-serif' : '11px system-ui, sans-serif';
    ctx.fillText(text, x + 7, y + l.ch - (big ? 10 : 5));
  }

  #marks(mark, list, l, p, colour) {
    const { ctx } = this;
    const r = l.cw >= 64 ? 5 : Math.max(2.5, Math.min(5, Math.min(l.cw, l.ch) / 2 - 2));
    ctx.lineJoin = 'round';
    if (mark.frame && l.cw < 64) {
      ctx.beginPath();
      for (const [x, y] of list) ctx.rect(x - 0.5, y - 0.5, l.cw + 1, l.ch + 1);
      ctx.strokeStyle = colour;
      ctx.lineWidth = 2;
      ctx.stroke();
    }
    ctx.beginPath();
    for (const [x, y] of list) {
      if (l.cw >= 64) mark.path(ctx, x + l.cw - 12, y + 12, r);
      else mark.path(ctx, x + l.cw / 2, y + l.ch / 2, r);
    }
    // An edge of the other lightness keeps a mark legible on every shade.
    ctx.strokeStyle = p.edge;
    ctx.lineWidth = mark.fill ? 3 : 4;
    ctx.stroke();
    ctx.strokeStyle = ctx.fillStyle = colour;
    if (mark.fill) ctx.fill();
    else {
      ctx.lineWidth = 1.75;
      ctx.stroke();
    }
  }
}

// Measuring text is slow, and the same few names are measured in every frame.
const widths = new Map();

function width(ctx, text) {
  const key = `${ctx.font}\n${text}`;
  let w = widths.get(key);
  if (w === undefined) {
    if (widths.size > 20_000) widths.clear();
    widths.set(key, w = ctx.measureText(text).width);
  }
  return w;
}

// strip is the height of the name below the GPUs of a cell.
const strip = (h) => (h >= 44 ? 17 : 14);

// fit returns the first of some names that there is room for, or the last without its middle.
function fit(ctx, names, room) {
  const fits = names.map(isolated).find((text) => width(ctx, text) <= room);
  if (fits) return fits;
  const text = isolated(names.at(-1));
  const letters = [...legible(names.at(-1))];
  // About as many letters as there is room for, then one less at a time.
  let n = Math.max(1, Math.ceil((letters.length * room) / width(ctx, text)));
  const cut = () => isolated(`${letters.slice(0, Math.floor(n / 2)).join('')}…${letters.slice(letters.length - Math.ceil(n / 2)).join('')}`);
  while (n > 1 && width(ctx, cut()) > room) n--;
  return cut();
}
