// SPDX-License-Identifier: Apache-2.0

// The scale is held to what people with poor or other colour vision need.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { labelOn, palette, step } = await load('colours.js');

const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
// WCAG 2.2: relative luminance, and contrast ratio.
const luminance = (rgb) => 0.2126 * linear(rgb[0]) + 0.7152 * linear(rgb[1]) + 0.0722 * linear(rgb[2]);
const contrast = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);
const parse = (css) => css.match(/\d+/g).map(Number);

for (const theme of ['dark', 'light']) {
  test(`${theme}: the scale is read by lightness alone, and its labels can be read`, () => {
    const p = palette(theme);
    const way = theme === 'dark' ? 1 : -1;
    // Of direct neighbours the rounding to bytes may turn the order.
    for (let i = 8; i < p.rgb.length; i++) {
      assert.ok(way * (luminance(p.rgb[i]) - luminance(p.rgb[i - 8])) > 0, `shade ${i} goes on from ${i - 8}`);
    }
    // WCAG 2.2, 1.4.11 asks 3 for graphics, 1.4.3 asks 4.5 for text.
    assert.ok(contrast(p.rgb[0], p.rgb.at(-1)) >= 3, 'calm and alarming differ');
    assert.ok(contrast(p.rgb.at(-1), parse(p.back)) >= 3, 'alarming stands out');
    for (let i = 0; i < p.rgb.length; i++) {
      const c = contrast(p.rgb[i], parse(labelOn(p, i)));
      assert.ok(c >= 4, `label on shade ${i}: ${c.toFixed(2)}`);
    }
    for (const i of [0, step(0.1), step(0.9), step(1)]) assert.ok(contrast(p.rgb[i], parse(labelOn(p, i))) >= 4.5);
    assert.ok(contrast(parse(p.soft), parse(p.back)) >= 4.5, 'titles');
  });
}
