// SPDX-License-Identifier: Apache-2.0

// The page's modules without a browser: node --test test/browser/modules
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

// A copy beside which a package.json says that .js is a module, for Node 18.
const dir = mkdtempSync(path.join(tmpdir(), 'fleet-modules-'));
cpSync(fileURLToPath(new URL('../../../extension/fleetviewextension/web/static/js', import.meta.url)), dir, { recursive: true });
writeFileSync(path.join(dir, 'package.json'), '{"type": "module"}');
process.on('exit', () => rmSync(dir, { recursive: true, force: true }));

// load imports a module of the page that touches no document when it is imported.
export const load = (name) => import(pathToFileURL(path.join(dir, name)).href);
