// SPDX-License-Identifier: Apache-2.0

// The tests of the page share servers, a browser, and a page that fails its test on
// any error or any request to elsewhere.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';

export const root = path.resolve(import.meta.dirname, '../..');
const { chromium } = createRequire(path.join(process.env.NODE_MODULES, 'x.js'))('playwright-core');

export function launch() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
}

// freePort does what test/loopback does, so that neither gets a port of the other: it
// keeps the UDP port of the number until this process ends.
async function freePort() {
  for (let tries = 12_000; tries > 0; tries--) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const kept = createSocket('udp4');
    const tcp = createServer();
    try {
      kept.bind({ port, address: '127.0.0.1', exclusive: true });
      await once(kept, 'listening');
      tcp.listen(port, '127.0.0.1');
      await once(tcp, 'listening');
      kept.unref();
      await new Promise((done) => tcp.close(done));
      return port;
    } catch {
      kept.close();
    }
  }
  throw new Error('no free port on 127.0.0.1');
}

// start runs a program until stop is called; it is ready when the URL answers.
async function start(command, args, url, env) {
  const child = spawn(command, args, { cwd: root, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '';
  for (const out of [child.stdout, child.stderr]) out.on('data', (d) => { log = (log + d).slice(-20_000); });
  let exit;
  const exited = new Promise((done) => child.on('exit', (code) => done(exit = code ?? 'a signal')));
  for (const end = Date.now() + 120_000; ;) {
    if (exit !== undefined || Date.now() > end) throw new Error(`${command} does not answer at ${url}:\n${log}`);
    if (await fetch(url).then((r) => r.ok, () => false)) break;
    await new Promise((done) => setTimeout(done, 50));
  }
  return { url, signal: (name) => child.kill(name), stop: async () => { child.kill('SIGINT'); await exited; } };
}

// demo starts the collector as `make run` does; at gives the port to listen on
// again, more is configuration that goes over it.
export async function demo(at, ...more) {
  const ports = await Promise.all([freePort(), freePort(), freePort(), freePort()]);
  const fleet = at ?? ports[3];
  const state = await mkdtemp(path.join(tmpdir(), 'fleet-'));
  const server = await start(path.join(root, 'bin/gpu-collector'), ['--config', 'configs/demo.yaml', ...more.flatMap((text) => ['--config', `yaml:${text}`])], `http://127.0.0.1:${fleet}/`, {
    DEMO_OTLP_PORT: ports[0], DEMO_PROMETHEUS_PORT: ports[1], DEMO_API_PORT: ports[2], DEMO_FLEET_PORT: fleet, STATE_DIRECTORY: state,
  });
  const stop = async () => {
    await server.stop();
    await rm(state, { recursive: true, force: true });
  };
  return { ...server, port: fleet, stop };
}

// bigFleet serves as many nodes as are made up; flags are the program's.
export async function bigFleet(nodes, ...flags) {
  const port = await freePort();
  return start(path.join(root, '.cache/bigfleet'), ['-nodes', nodes, '-listen', `127.0.0.1:${port}`, ...flags], `http://127.0.0.1:${port}/`);
}

// patient gives a machine that does much else the time that it needs.
export function patient(context) {
  context.setDefaultTimeout(150_000);
  context.setDefaultNavigationTimeout(150_000);
}

// withPage opens a page, and holds it to no error and no request to elsewhere.
// `unpainted` begins before the fleet is drawn; `expected` are texts of errors that the test provokes.
export async function withPage(browser, url, options, use, expected = []) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 820 }, ...options, unpainted: undefined });
  patient(context);
  const page = await context.newPage();
  const wrong = [];
  page.on('console', (m) => { if (['error', 'warning'].includes(m.type())) wrong.push(m.text()); });
  page.on('pageerror', (e) => wrong.push(e.stack));
  context.on('request', (r) => { if (new URL(r.url()).origin !== new URL(url).origin) wrong.push(`request to ${r.url()}`); });
  try {
    await page.goto(url);
    if (!options.unpainted) await painted(page);
    await use(page);
  } finally {
    await context.close();
  }
  assert.deepEqual(wrong.filter((w) => !expected.some((e) => w.includes(e))), []);
}

// painted waits until the whole fleet was drawn once, and returns when that was, in ms.
export async function painted(page) {
  await page.waitForFunction(() => performance.getEntriesByName('fleet-painted').length > 0);
  return page.evaluate(() => performance.getEntriesByName('fleet-painted')[0].startTime);
}

// axe fails for each thing on the page that people with disabilities cannot use, by all
// rules of WCAG 2.2 A and AA and axe-core's best practices.
const source = await readFile(path.join(process.env.NODE_MODULES, 'axe-core/axe.min.js'), 'utf8');
export async function axe(page, what) {
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => window.axe.run(document));
  assert.deepEqual(violations.map((v) => `${what}: ${v.id} ${v.nodes.map((n) => n.target.join(' ')).slice(0, 3).join(', ')}`), []);
}

// quantile of numbers, 0 to 1.
export function quantile(list, q) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))];
}
