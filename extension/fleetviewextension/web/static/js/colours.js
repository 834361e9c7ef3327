// SPDX-License-Identifier: Apache-2.0

// Each colour has one meaning: red is critical, amber is major, grey is over or not
// known, and blue is how much was measured. The scale runs from calm to alarming in one
// hue, in a straight line through OKLab (Ottosson 2020,
// https://bottosson.github.io/posts/oklab/). Its lightness goes one way, away from the
// background, so that people with any colour vision see the order.
const ends = {
  dark: [[0.34, -0.010, -0.055], [0.90, -0.030, -0.055]],
  light: [[0.90, -0.012, -0.030], [0.38, -0.020, -0.150]],
};
const steps = 256;

// oklab returns sRGB bytes.
export function oklab(L, a, b) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
  ].map((c) => Math.round(255 * Math.min(1, Math.max(0, c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055))));
}

// pack makes a pixel of an ImageData on little-endian machines, which is every
// machine that browsers run on.
export const pack = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

function table([from, to]) {
  const rgb = [];
  for (let i = 0; i < steps; i++) {
    const t = i / (steps - 1);
    rgb.push(oklab(...from.map((v, k) => v + t * (to[k] - v))));
  }
  return { rgb, px: Uint32Array.from(rgb, pack) };
}

const plain = {
  dark: { back: oklab(0.19, -0.003, -0.012), empty: oklab(0.27, -0.003, -0.014), line: oklab(0.55, -0.004, -0.016), ink: oklab(0.97, 0, 0), soft: oklab(0.72, -0.003, -0.014), select: [125, 180, 255], critical: [255, 107, 97], major: [242, 180, 65], edge: oklab(0.12, 0, 0), label: [oklab(0.95, 0, -0.008), oklab(0.18, 0, 0)] },
  light: { back: oklab(0.985, -0.001, -0.003), empty: oklab(0.945, -0.002, -0.005), line: oklab(0.62, -0.004, -0.016), ink: oklab(0.20, 0, 0), soft: oklab(0.46, -0.003, -0.016), select: [11, 98, 196], critical: [190, 24, 24], major: [178, 98, 6], edge: oklab(1, 0, 0), label: [oklab(0.22, 0, -0.01), oklab(0.99, 0, 0)] },
};

// contrast of two colours after WCAG 2.2, 1 to 21.
export function contrast(a, b) {
  const [x, y] = [a, b].map((rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  });
  return Math.max(x, y) / Math.min(x, y);
}

const palettes = {};

// palette returns the colours of a theme, `dark` or `light`.
export function palette(theme) {
  if (!palettes[theme]) {
    const p = { theme, ...table(ends[theme]) };
    for (const [name, rgb] of Object.entries(plain[theme])) {
      if (name === 'label') p.label = p.rgb.map((shade) => css(contrast(shade, rgb[0]) >= contrast(shade, rgb[1]) ? rgb[0] : rgb[1]));
      else { p[name] = css(rgb); p[`${name}Px`] = pack(rgb); }
    }
    palettes[theme] = p;
  }
  return palettes[theme];
}

export const step = (t) => Math.round(Math.min(1, Math.max(0, t)) * (steps - 1));
// SHADES are the colours of a mode with steps: calm, major, critical.
const shades = (p) => [p.px[0], p.majorPx, p.criticalPx];
// pixel returns the colour of a value of a mode.
export const pixel = (p, m, t) => (m.steps ? shades(p)[t] : p.px[step(t)]);
// stepCss is the colour of a step.
export const stepCss = (p, t) => [css(p.rgb[0]), p.major, p.critical][t];
// labelOn returns the text colour for a cell of a shade.
export const labelOn = (p, i) => p.label[i];

// HEALTH orders the states as the API names them; a GPU that does not answer is worse.
export const HEALTH = ['unknown', 'healthy', 'degraded', 'unhealthy', 'down'];
export const DOWN = HEALTH.indexOf('down');
const healthShade = [NaN, 0, 1, 2, 2]; // of the steps

const nothing = NaN;
const or = (v) => v ?? nothing;

// The meanings of a colour: `node` and `gpu` return 0 (calm) to 1 (alarming), or
// NaN where nothing is known. Without `gpu` all GPUs of a node look alike.
export const modes = {
  score: {
    label: 'Score', low: '1', high: '≤ 0.5', title: 'Score: 1 is as fast as the peers',
    node: (n) => (1 - or(n.score)) / 0.5, text: (n) => (n.score === undefined ? '' : n.score.toFixed(2)),
  },
  suspicion: {
    label: 'Suspicion', low: '0', high: '≥ 1, a straggler', title: 'Evidence against the node, as a share of what names a straggler',
    node: (n) => or(n.suspicion), text: (n) => (n.suspicion === undefined ? '' : n.suspicion.toFixed(2)),
  },
  temperature: {
    label: 'Temperature', low: '30 °C', high: '≥ 95 °C', title: 'Temperature of each GPU',
    node: (n) => (or(n.celsius) - 30) / 65, gpu: (n, i) => (n.gpuCelsius[i] - 30) / 65,
    text: (n) => (n.celsius === undefined ? '' : `${Math.round(n.celsius)} °C`),
  },
  health: {
    label: 'Health', title: 'Health of each GPU', steps: [['healthy', 0], ['degraded', 1], ['unhealthy or down', 2]],
    node: (n) => healthShade[n.health], gpu: (n, i) => healthShade[n.gpuHealth[i]], text: (n) => (n.health >= 2 ? HEALTH[n.health] : ''),
  },
};
