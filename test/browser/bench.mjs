// SPDX-License-Identifier: Apache-2.0

// How soon the page is there: figures of `make bench-page`.
import { bigFleet, launch, painted, quantile, withPage } from './harness.mjs';

const ROUNDS = 5;
const browser = await launch();

// measure returns first paint and the time until the page answers a key, in ms: the whole
// fleet is drawn, and the selection has moved on the screen. Each round has nothing cached.
async function measure(url) {
  let out;
  await withPage(browser, url, {}, async (page) => {
    const drawn = await painted(page);
    const answered = await page.evaluate(() => new Promise((done) => {
      document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
      const began = performance.now();
      requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
    }));
    const first = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime);
    out = { first, interactive: drawn + answered };
  }, ['willReadFrequently']);
  return out;
}

const print = (name, value, limit) => console.log(`figure ${name} ${Math.round(value)} ms limit ${limit} ${Math.round(value) <= limit ? 'pass' : 'short'}`);

try {
  const server = await bigFleet(5000);
  try {
    const rounds = [];
    for (let i = 0; i < ROUNDS; i++) rounds.push(await measure(server.url));
    print('page_first_paint_5000_nodes', quantile(rounds.map((r) => r.first), 0.5), 500);
    print('page_interactive_5000_nodes', quantile(rounds.map((r) => r.interactive), 0.5), 2000);
  } finally {
    await server.stop();
  }
} finally {
  await browser.close();
}
