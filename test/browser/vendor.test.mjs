// SPDX-License-Identifier: Apache-2.0

// The plot library that the page carries is that of its authors, byte by byte.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { test } from 'node:test';
import { root } from './harness.mjs';

const ours = (name) => readFile(path.join(root, 'extension/fleetviewextension/web/static/vendor', name));
const theirs = (name) => readFile(path.join(process.env.NODE_MODULES, 'uplot', name));

for (const [own, packaged] of [['uPlot.esm.js', 'dist/uPlot.esm.js'], ['uPlot.min.css', 'dist/uPlot.min.css'], ['uPlot.LICENSE', 'LICENSE']]) {
  test(`${own} is ${packaged} of the package`, async () => {
    const [a, b] = await Promise.all([ours(own), theirs(packaged)]);
    assert.ok(b.length > 500, 'the package has it');
    assert.equal(Buffer.compare(a, b), 0, 'a byte differs');
  });
}

test('the version in the library is the one that is pinned', async () => {
  const { version } = JSON.parse(await theirs('package.json'));
  assert.match((await ours('uPlot.esm.js')).toString().slice(0, 400), new RegExp(`\\(v${version.replaceAll('.', '\\.')}\\)`));
});
