// SPDX-License-Identifier: Apache-2.0
import uPlot from '../vendor/uPlot.esm.js';
import { palette } from './colours.js';
import { num } from './format.js';
import { theme } from './theme.js';

// Lines differ in dashes too, so that colour is not alone.
const lines = {
  node: { width: 2 },
  median: { width: 1.5, dash: [6, 4] },
  threshold: { width: 1.25, dash: [2, 3] },
};

function colour(line, p) {
  if (line === 'node') return p.ink;
  return line === 'median' ? (p.theme === 'dark' ? 'rgb(128 172 222)' : 'rgb(40 96 160)') : p.soft;
}

const usual = (p) => (p.theme === 'dark' ? 'rgb(128 172 222 / 16%)' : 'rgb(40 96 160 / 12%)');

const DAY = 86_400;
const time = (t) => new Date(t * 1000).toLocaleTimeString('en-GB');
const day = (t) => new Date(t * 1000).toLocaleDateString('en-CA').slice(5);

// stamps are the times below a plot; with days between them, the days.
const stamps = (_, at) => at.map((t) => (at.length > 1 && at.at(-1) - at[0] >= DAY ? day(t) : time(t)));

// stamp has the day where a plot is of more than one.
function stamp(u, t) {
  const x = u.data[0];
  if (t === null) return '';
  return x.at(-1) - x[0] >= DAY ? `${day(t)} ${time(t)}` : time(t);
}

// dots shows points where a line would be too short to be seen.
const dots = (u, _, from, to) => u.valToPos(u.data[0][to], 'x') - u.valToPos(u.data[0][from], 'x') < 4;

// Plot shows a node's values beside its peers' median and a threshold. series is
// [[line, label]]. A usual range adds two series, low and high. zoom tells the time that is
// looked at, and is told of another.
export class Plot {
  constructor(box, series, ranged, zoom) {
    const p = palette(theme());
    const axis = { stroke: p.soft, font: '11px system-ui', grid: { stroke: p.empty, width: 1 }, ticks: { stroke: p.empty, size: 4 } };
    this.u = new uPlot({
      width: box.clientWidth || 420, height: 120, padding: [8, 28, 0, 0], cursor: { y: false, points: { size: 6 }, sync: { key: 'fleet' }, drag: { x: true, y: false, setScale: false } },
      hooks: { setSelect: [(u) => {
        if (u.select.width < 4) return;
        const [from, to] = [u.select.left, u.select.left + u.select.width].map((x) => u.posToVal(x, 'x'));
        u.setSelect({ width: 0, height: 0 }, false);
        // The other plots show the same selection; one of them asks for the past.
        if (zoom.dragged === u) zoom.to(from, to);
      }] },
      legend: { live: true },
      scales: { x: { range: () => zoom.span }, y: { range: (_, lo, hi) => range(lo, hi) } },
      axes: [
        { ...axis, size: 24, space: 70, values: stamps },
        { ...axis, size: 48, space: 26, values: (_, v) => v.map(num) },
      ],
      series: [
        { label: 'at', value: stamp },
        ...series.map(([line, label]) => ({
          label, stroke: colour(line, p), ...lines[line], spanGaps: true, points: { show: line === 'node' && dots, size: 4 }, value: (_, v) => num(v),
        })),
        ...(ranged ? ['usual from', 'to'].map((label) => ({
          label, stroke: 'transparent', width: 0, spanGaps: true, points: { show: false }, value: (_, v) => num(v),
        })) : []),
      ],
      bands: ranged ? [{ series: [series.length + 2, series.length + 1], fill: usual(p) }] : [],
    }, [[], ...series.map(() => []), ...(ranged ? [[], []] : [])], box);
    this.u.over.addEventListener('mousedown', () => { zoom.dragged = this.u; });
    this.box = box;
    this.resize = new ResizeObserver(() => this.u.setSize({ width: Math.max(160, box.clientWidth), height: 120 }));
    this.resize.observe(box);
  }

  // set takes seconds and a list of values per series.
  set(t, values) {
    this.u.setData([t, ...values]);
    // After uPlot's own drawing, which it does in a microtask and which empties the legend.
    queueMicrotask(() => { if (!(this.u.cursor.left >= 0)) this.#latest(t); });
  }

  // Without a pointer the legend shows the newest values.
  #latest(t) {
    if (t.length === 0) return;
    this.u.setLegend({ idx: t.length - 1 });
  }

  destroy() {
    this.resize.disconnect();
    this.u.destroy();
  }
}

// range leaves room around the lines, so that noise does not fill the plot.
function range(lo, hi) {
  if (lo === null || hi === null) return [0, 1];
  const pad = Math.max((hi - lo) * 0.12, Math.abs(hi) * 0.02, 1e-9);
  return [lo - pad, hi + pad];
}
