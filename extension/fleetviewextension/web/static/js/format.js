// SPDX-License-Identifier: Apache-2.0

export const NONE = '–';

// now is the gateway's time in ms: ages are by its clock, whatever that of this
// machine says. The event that came fastest tells it best.
let ahead = 0;
let heard = false;
export const now = () => Date.now() + ahead;
export function heardAt(at, first) {
  const d = at - Date.now();
  if (first || !heard || d > ahead) ahead = d;
  heard = true;
}

const known = (v) => v !== undefined && v !== null && Number.isFinite(v);

// num keeps three significant digits, without an exponent for what people meet.
export function num(v) {
  if (!known(v)) return NONE;
  const a = Math.abs(v);
  if (a === 0) return '0';
  if (a >= 1e6) return v.toLocaleString('en', { notation: 'compact', maximumSignificantDigits: 3 });
  if (a >= 100) return v.toLocaleString('en', { maximumFractionDigits: 0 });
  if (a < 1e-4) return v.toExponential(1);
  return String(Number(v.toPrecision(3)));
}

export const fixed = (v, digits = 2) => (known(v) ? v.toFixed(digits) : NONE);
export const percent = (v, digits = 0) => (known(v) ? `${(v * 100).toFixed(digits)} %` : NONE);
export const celsius = (v) => (known(v) ? `${Math.round(v)} °C` : NONE);
export const watts = (v) => (known(v) ? (v >= 10_000 ? `${(v / 1000).toFixed(1)} kW` : `${Math.round(v)} W`) : NONE);
export const mega = (hz) => (known(hz) ? String(Math.round(hz / 1e6)) : NONE);
export const gib = (bytes) => (known(bytes) ? (bytes / 2 ** 30).toFixed(1) : NONE);

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

// clock shows the time of day, and the date when it is another day.
export function clock(at) {
  const d = new Date(at);
  const time = d.toLocaleTimeString('en-GB');
  return d.toDateString() === new Date(now()).toDateString() ? time : `${d.toLocaleDateString('en-CA')} ${time}`;
}

export const words = (name) => (name ? name.replaceAll('_', ' ') : NONE);

// Characters without a look of their own, or that turn the order of their
// neighbours: controls, formats, ignorable characters, and all spaces but the
// keyboard's.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/gu;

// legible shows the unseen characters of a foreign text: no name looks like another
// or writes over its neighbours (Unicode TR 36, section 2).
export const legible = (text) => text.replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

// isolated keeps letters that run from right to left from moving what stands
// beside them, where no element does (UAX 9, section 2.4).
export const isolated = (text) => `\u2068${legible(text)}\u2069`;

// withUnit shows a fact of an episode's evidence in its UCUM unit.
export function withUnit(v, unit) {
  if (!known(v)) return NONE;
  switch (unit) {
    case 'Cel': return `${num(v)} °C`;
    case 'By': return `${num(v / 2 ** 30)} GiB`;
    case 'By/s': return `${num(v / 1e9)} GB/s`;
    case undefined: case '': case '1': return num(v);
    default: return `${num(v)} ${unit.replace(/^\{(.*)\}(.*)$/, '$1$2')}`;
  }
}
