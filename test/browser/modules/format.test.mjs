// SPDX-License-Identifier: Apache-2.0

// How the page writes numbers, times and foreign texts.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const f = await load('format.js');

test('numbers have three digits, and what is unknown is a dash', () => {
  for (const [v, want] of [[0, '0'], [1234.5, '1,235'], [-1234.5, '-1,235'], [0.012345, '0.0123'], [99.96, '100'], [1e-5, '1.0e-5'], [2_500_000, '2.5M']]) {
    assert.equal(f.num(v), want);
  }
  for (const v of [undefined, null, NaN, Infinity]) {
    for (const show of [f.num, f.fixed, f.percent, f.celsius, f.watts, f.mega, f.gib, f.duration, f.withUnit]) assert.equal(show(v), f.NONE);
  }
  assert.deepEqual([f.fixed(0.005, 1), f.percent(0.125, 1), f.celsius(90.6), f.mega(1.98e9), f.gib(80 * 2 ** 30)], ['0.0', '12.5 %', '91 °C', '1980', '80.0']);
  assert.deepEqual([f.watts(9999.4), f.watts(10_240)], ['9999 W', '10.2 kW']);
});

test('units of evidence are those of people', () => {
  for (const [v, unit, want] of [
    [91, 'Cel', '91 °C'], [2 ** 31, 'By', '2 GiB'], [12.5e9, 'By/s', '12.5 GB/s'], [0.5, '1', '0.5'], [3, undefined, '3'], [3, '{error}', '3 error'], [3, '{step}/s', '3 step/s'], [700, 'W', '700 W'],
  ]) assert.equal(f.withUnit(v, unit), want);
});

test('durations have the two greatest units', () => {
  for (const [s, want] of [[-3, '0 s'], [59.4, '59 s'], [59.6, '1 min 0 s'], [3599, '59 min 59 s'], [3600, '1 h 0 min'], [86_399, '23 h 59 min'], [90_000, '1 d 1 h']]) {
    assert.equal(f.duration(s), want);
  }
});

test('the gateway’s clock is as its fastest event tells it', () => {
  const about = (ms) => assert.ok(Math.abs(f.now() - Date.now() - ms) < 600_000, `${f.now() - Date.now()} is not ${ms}`);
  const hour = 3_600_000;
  f.heardAt(Date.now() + hour, true);
  about(hour);
  f.heardAt(Date.now()); // came late, and tells nothing
  about(hour);
  f.heardAt(Date.now() + 2 * hour);
  about(2 * hour);
  f.heardAt(Date.now(), true); // of another connection
  about(0);
  assert.match(f.clock(Date.now() - 48 * hour), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/);
  assert.match(f.clock(f.now()), /^\d\d:\d\d:\d\d$/);
});

test('a foreign text shows what cannot be seen', () => {
  assert.equal(f.legible('a\u202eb\u200b c\u00a0\nא'), 'a\\u{202e}b\\u{200b} c\\u{a0}\\u{a}א');
  assert.equal(f.isolated('a\u202e'), '\u2068a\\u{202e}\u2069');
  assert.deepEqual([f.words('hw_thermal_slowdown'), f.words('')], ['hw thermal slowdown', f.NONE]);
});
