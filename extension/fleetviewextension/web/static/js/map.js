// SPDX-License-Identifier: Apache-2.0
import { $, setText } from './dom.js';
import { palette } from './colours.js';
import { at, beside, layout } from './layout.js';
import { Options } from './options.js';
import { Painter } from './paint.js';
import { theme } from './theme.js';
import { describe } from './legend.js';

const KEPT = 300; // draws that the browser's performance tools show

// FleetMap is the heat map: it draws once per frame at most, and only what
// changed; selection and hover lie on a canvas of their own.
export class FleetMap {
  selected = '';
  hovered = '';
  #members = -1;
  #dirty = false;
  #frame = 0;
  #draws = 0;

  constructor(fleet, view, open) {
    this.fleet = fleet;
    this.view = view;
    this.open = open;
    this.scroll = $('scroll');
    this.painter = new Painter($('cells'));
    this.over = $('over').getContext('2d');
    this.options = new Options(this.scroll, $('options'));
    this.layout = layout([], 1, 1);
    new ResizeObserver(() => this.#resize()).observe(this.scroll);
    this.scroll.addEventListener('scroll', () => this.draw(), { passive: true });
    this.scroll.addEventListener('pointermove', (e) => this.#hover(e));
    this.scroll.addEventListener('pointerleave', () => this.#hover(null));
    this.scroll.addEventListener('click', (e) => this.#click(e));
    this.scroll.addEventListener('keydown', (e) => this.#key(e));
    this.scroll.addEventListener('focus', () => this.#selectSome());
    this.scroll.addEventListener('blur', () => this.outline());
  }

  // draw asks for one frame; outline for one in which only selection and hover change.
  draw() {
    this.#dirty = true;
    this.outline();
  }

  outline() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      if (this.#dirty) this.#paint();
      else this.#outline();
    });
  }

  #resize() {
    const { clientWidth: w, clientHeight: h } = this.scroll;
    if (!w || !h) return;
    const ratio = Math.min(2, devicePixelRatio || 1);
    [this.width, this.height, this.ratio] = [w, h, ratio];
    this.painter.resize(w, h, ratio);
    const over = this.over.canvas;
    [over.width, over.height] = [Math.round(w * ratio), Math.round(h * ratio)];
    for (const c of [this.painter.canvas, over]) [c.style.width, c.style.height] = [`${w}px`, `${h}px`];
    this.#members = -1;
    // Now, since the new size has cleared the canvas.
    this.#paint();
  }

  #paint() {
    if (!this.width) return;
    const started = performance.now();
    this.#dirty = false;
    if (this.#members !== this.fleet.members) {
      this.#members = this.fleet.members;
      this.layout = layout(this.fleet.clusters(), this.width, this.height);
      $('sheet').style.height = `${Math.max(1, this.layout.height)}px`;
      this.options.setLayout(this.layout);
      if (document.activeElement === this.scroll) this.#selectSome();
      this.onLayout?.(this.layout);
    }
    this.painter.paint(this.layout, this.fleet, this.scroll.scrollTop, this.view.mode, palette(theme()));
    this.#outline();
    if (this.hovered) setText($('tip'), describe(this.fleet.nodes.get(this.hovered), this.fleet.named.get(this.hovered)));
    this.options.update(this.fleet, this.selected);
    this.onPaint?.();
    performance.measure('fleet-draw', { start: started });
    if (++this.#draws % KEPT === 0) performance.clearMeasures('fleet-draw');
  }

  #outline() {
    const { over, layout: l, ratio } = this;
    const p = palette(theme());
    over.setTransform(ratio, 0, 0, ratio, 0, 0);
    over.clearRect(0, 0, this.width, this.height);
    const ring = (key, width, colour) => {
      const i = l.index.get(key);
      if (i === undefined) return;
      over.lineWidth = width;
      over.strokeStyle = colour;
      over.strokeRect(l.x[i] - 1.5, l.y[i] - 1.5 - this.scroll.scrollTop, l.cw + 3, l.ch + 3);
    };
    ring(this.hovered, 1, p.soft);
    const focused = document.activeElement === this.scroll;
    if (this.selected && (focused || this.selected === this.view.open)) {
      ring(this.selected, 5, p.edge);
      ring(this.selected, 2.5, p.select);
    }
    if (this.view.open && this.view.open !== this.selected) ring(this.view.open, 2, p.select);
  }

  // select moves the selection and brings it into view.
  select(key) {
    const i = this.layout.index.get(key);
    if (i === undefined) return;
    this.selected = key;
    const y = this.layout.y[i];
    if (y < this.scroll.scrollTop + 8) this.scroll.scrollTop = Math.max(0, y - 64);
    else if (y + this.layout.ch > this.scroll.scrollTop + this.height - 8) this.scroll.scrollTop = y + this.layout.ch - this.height + 24;
    this.options.update(this.fleet, key);
    this.outline();
  }

  // selectSome selects the first node when the selected node is not shown.
  #selectSome() {
    this.select(this.layout.index.has(this.selected) ? this.selected : this.layout.keys[0]);
  }

  #find(e) {
    const box = this.scroll.getBoundingClientRect();
    const i = at(this.layout, e.clientX - box.left, e.clientY - box.top + this.scroll.scrollTop);
    return i < 0 ? '' : this.layout.keys[i];
  }

  #hover(e) {
    const key = e ? this.#find(e) : '';
    const tip = $('tip');
    if (key !== this.hovered) {
      this.hovered = key;
      this.scroll.style.cursor = key ? 'pointer' : '';
      this.outline();
      tip.hidden = !key;
      if (key) setText(tip, describe(this.fleet.nodes.get(key), this.fleet.named.get(key)));
    }
    if (key) {
      const x = Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8);
      const y = Math.min(e.clientY + 16, innerHeight - tip.offsetHeight - 8);
      tip.style.transform = `translate(${x}px, ${y}px)`;
    }
  }

  #click(e) {
    const key = this.#find(e);
    if (!key) return;
    $('tip').hidden = true;
    this.select(key);
    this.open(key);
  }

  #key(e) {
    const l = this.layout;
    if (e.altKey || e.ctrlKey || e.metaKey || l.keys.length === 0) return;
    const i = l.index.get(this.selected) ?? 0;
    const to = {
      ArrowLeft: () => beside(l, i, -1, 0), ArrowRight: () => beside(l, i, 1, 0),
      ArrowUp: () => beside(l, i, 0, -1), ArrowDown: () => beside(l, i, 0, 1),
      Home: () => 0, End: () => l.keys.length - 1,
    }[e.key];
    if (to) this.select(l.keys[l.index.has(this.selected) ? to() : 0]);
    else if (e.key === 'Enter' && l.index.has(this.selected)) this.open(this.selected);
    else return;
    e.preventDefault();
  }
}
