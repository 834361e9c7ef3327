// SPDX-License-Identifier: Apache-2.0

// Cells from those that have room for a name down to those that are a few pixels.
const sizes = [[148, 56], [112, 46], [88, 38], [64, 30], [44, 24], [34, 20], [26, 16], [20, 13], [15, 11], [12, 9]];
const shapes = [1, 1.6, 3, 6, Infinity]; // width to height of a group's block

const PAD = 10;
const GAP = 12; // between blocks
const CLUSTER = 24; // height of a cluster's title
const GROUP = 17; // height of a group's title
const MIN_BLOCK = 96; // room for a group's title

// A map that must be scrolled may be longer by SPARE: larger cells are easier to
// read and to hit.
const SPARE = 1.25;

// layout places clusters, groups and nodes into a width, with the greatest cells
// that fit the height too; where none do, the map is scrolled.
export function layout(clusters, width, height) {
  const tries = sizes.map(([cw, ch]) => {
    let best;
    for (const shape of shapes) {
      const tall = measure(clusters, width, cw, ch, shape);
      if (!best || tall < best.tall) best = { cw, ch, shape, tall };
    }
    return best;
  });
  const limit = Math.max(height, SPARE * Math.min(...tries.map((t) => t.tall)));
  return place(clusters, width, tries.find((t) => t.tall <= limit));
}

const gapOf = (cw) => (cw >= 44 ? 4 : cw >= 20 ? 2 : 1);

function block(n, room, cw, ch, shape) {
  const gap = gapOf(cw);
  const most = Math.max(1, Math.floor((room + gap) / (cw + gap)));
  let cols = Math.min(n, most, Math.max(1, Math.ceil(Math.sqrt((shape * n * ch) / cw))));
  const rows = Math.ceil(n / cols);
  cols = Math.ceil(n / rows); // as many in each row
  return { cols, w: Math.max(MIN_BLOCK, cols * (cw + gap) - gap), h: GROUP + rows * (ch + gap) - gap };
}

function walk(clusters, width, cw, ch, shape, visit) {
  const room = width - 2 * PAD;
  let y = PAD;
  for (const c of clusters) {
    visit?.cluster(c, PAD, y);
    y += CLUSTER;
    let x = PAD;
    let shelf = 0;
    for (const g of c.groups) {
      const b = block(g.keys.length, room, cw, ch, c.groups.length === 1 ? Infinity : shape);
      if (x > PAD && x + b.w > PAD + room) {
        x = PAD;
        y += shelf + GAP;
        shelf = 0;
      }
      visit?.group(g, x, y, b);
      x += b.w + GAP;
      shelf = Math.max(shelf, b.h);
    }
    y += shelf + GAP;
  }
  return y - GAP + PAD;
}

const measure = (clusters, width, cw, ch, shape) => walk(clusters, width, cw, ch, shape);

function place(clusters, width, { cw, ch, shape }) {
  const gap = gapOf(cw);
  const out = { cw, ch, clusters: [], groups: [], keys: [], x: [], y: [], index: new Map(), height: 0 };
  out.height = walk(clusters, width, cw, ch, shape, {
    cluster: (c, x, y) => out.clusters.push({ cluster: c.cluster, names: c.names, x, y }),
    group: (g, x, y, b) => {
      out.groups.push({ cluster: g.cluster, group: g.group, names: g.names, title: g.title, count: g.keys.length, x, y, w: b.w, h: b.h, from: out.keys.length });
      g.keys.forEach((key, i) => {
        out.index.set(key, out.keys.length);
        out.keys.push(key);
        out.x.push(x + (i % b.cols) * (cw + gap));
        out.y.push(y + GROUP + Math.floor(i / b.cols) * (ch + gap));
      });
    },
  });
  return out;
}

// at returns the place in the order of the node at a point, -1 if there is none.
export function at(l, x, y) {
  for (const g of l.groups) {
    if (x < g.x || x > g.x + g.w || y < g.y || y > g.y + g.h) continue;
    for (let i = g.from; i < g.from + g.count; i++) {
      if (x >= l.x[i] && x < l.x[i] + l.cw && y >= l.y[i] && y < l.y[i] + l.ch) return i;
    }
  }
  return -1;
}

// beside returns where an arrow leads: left and right along the order, up and
// down to the nearest cell of the nearest row.
export function beside(l, i, dx, dy) {
  if (dx) return Math.min(l.keys.length - 1, Math.max(0, i + dx));
  let best = i;
  let row = Infinity;
  let off = Infinity;
  for (let j = 0; j < l.keys.length; j++) {
    const d = (l.y[j] - l.y[i]) * dy;
    if (d <= 0 || d > row) continue;
    const o = Math.abs(l.x[j] - l.x[i]);
    if (d < row || o < off) [best, row, off] = [j, d, o];
  }
  return best;
}

// grid returns how the GPUs of a node fill its cell.
export function grid(n, w, h) {
  let cols = n;
  for (const c of [1, 2, 4, 8, 16, 32]) {
    if (c < n && (w / c) / (h / Math.ceil(n / c)) <= 1.7) { cols = c; break; }
  }
  return { cols, rows: Math.ceil(n / cols) };
}
