// SPDX-License-Identifier: Apache-2.0

// The page over fleets that are made up: how fast it is, and what it shows of GPUs.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { axe, bigFleet, launch, painted, quantile, root, withPage } from './harness.mjs';
import { load } from './modules/load.mjs';

let browser;
const { contrast } = await load('colours.js');

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

async function withFleet(nodes, use, ...flags) {
  const server = await bigFleet(nodes, ...flags);
  try {
    await use(server.url);
  } finally {
    await server.stop();
  }
}

// The times that a person would wait are figures: a machine that does much else misses them.
test('5,000 nodes of 8 GPUs are painted and answer a key, within 0.5 s and 2 s where it can', async (t) => {
  await withFleet(5000, async (url) => {
    const took = [];
    // Each has a context of its own, so that nothing is cached.
    while (took.length < 3) {
      await withPage(browser, url, {}, async (page) => {
        const drawn = await painted(page);
        took.push(await page.evaluate(() => new Promise((done) => {
          const began = performance.now();
          document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }));
          requestAnimationFrame(() => setTimeout(() => {
            const files = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource').filter((e) => /\.(js|css)$/.test(e.name))];
            const sum = (of) => files.reduce((n, e) => n + e[of], 0);
            done({
              paint: performance.getEntriesByName('first-contentful-paint')[0].startTime, answer: performance.now() - began,
              bytes: sum('encodedBodySize'), plain: sum('decodedBodySize'), selected: document.querySelector('[aria-selected=true]')?.textContent,
            });
          }));
        })).then((r) => ({ ...r, interactive: drawn + r.answer })));
      });
    }
    const list = (name) => took.map((r) => Math.round(r[name])).join(' ');
    t.diagnostic(`figure first-paint-5000-nodes-ms ${list('paint')}`);
    t.diagnostic(`figure interactive-5000-nodes-ms ${list('interactive')}`);
    t.diagnostic(`figure page-bytes ${took[0].bytes} gzip, ${took[0].plain} plain`);
    assert.ok(took.every((r) => r.selected?.startsWith('node-')), 'an arrow selects a node at once');
  });
});

// used measures frames and draws while somebody uses the map for five seconds.
async function used(page) {
  await page.evaluate(() => {
    performance.clearMeasures();
    window.frames_ = [];
    let last = performance.now();
    const mine = (window.round_ = {});
    const tick = (now) => {
      if (window.round_ !== mine) return;
      window.frames_.push(now - last);
      last = now;
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  });
  for (let i = 0, end = Date.now() + 5000; Date.now() < end; i++) {
    await page.mouse.move(600 + (i * 13) % 700, 200 + (i * 7) % 400);
    if (i % 10 === 0) await page.mouse.wheel(0, i % 20 ? -300 : 300);
    await page.keyboard.press(i % 2 ? 'ArrowDown' : 'ArrowRight');
    await page.waitForTimeout(30);
  }
  return page.evaluate(() => ({
    frames: window.frames_.slice(1), draws: performance.getEntriesByName('fleet-draw').map((e) => e.duration),
  }));
}

test('5,000 nodes of 8 GPUs are used while all of them change', async (t) => {
  await withFleet(5000, async (url) => {
    await withPage(browser, `${url}#colour=temperature`, { colorScheme: 'dark' }, async (page) => {
      await page.focus('#scroll');
      const ms = (list) => [0.5, 0.95, 1].map((q) => quantile(list, q).toFixed(1)).join(' ');
      // Sixty frames a second have 16.7 ms each.
      const { frames, draws } = await used(page);
      t.diagnostic(`figure frame-time-5000-nodes-ms p50 p95 max: ${ms(frames)}`);
      t.diagnostic(`figure draw-5000-nodes-ms p50 p95 max: ${ms(draws)}`);
      assert.ok(draws.length > 0, 'the fleet changed');
    });
  });
});

test('what holds a GPU down, its peers and its neighbours are in the panel', async () => {
  await withFleet(1000, async (url) => {
    await withPage(browser, `${url}#show=sick&colour=health`, { colorScheme: 'light' }, async (page) => {
      await page.locator('#shown', { hasText: '2 of 1,000 nodes' }).waitFor();
      await page.focus('#scroll');
      await page.keyboard.press('Enter');
      await page.locator('#panel h2', { hasText: /node-00(506|007)/ }).waitFor();
      assert.match(await page.locator('#panel .reasons').innerText(), /GPU 2 degraded[^]*remap pending → reset gpu/);
      const rows = page.locator('#panel .wide tbody tr');
      assert.equal(await rows.count(), 8);
      await page.locator('#panel tr[data-named]', { hasText: '▸ 2' }).waitFor();
      assert.match(await rows.nth(2).innerText(), /◆ degraded[^]*91 °C[^]*hw thermal/);
    });
    await withPage(browser, `${url}#in=cluster-d&node=node-00003`, { colorScheme: 'light' }, async (page) => {
      await page.locator('#panel .episode td', { hasText: 'temperature' }).waitFor();
      assert.match(await page.locator('#panel .episode', { has: page.locator('table') }).first().innerText(), /temperature\s+91 °C\s+63 °C/);
    });
  });
});

test('an empty fleet says that it is empty', async () => {
  await withFleet(0, async (url) => {
    await withPage(browser, url, {}, async (page) => {
      await page.locator('#empty', { hasText: 'such as GPU_COLLECTOR_GATEWAY=127.0.0.1:4317.' }).waitFor();
      await page.locator('#items', { hasText: 'point an agent at this gateway' }).waitFor();
      assert.equal(await page.locator('#figures b').first().innerText(), '0');
      await axe(page, 'empty');
      await page.focus('#scroll');
      await page.keyboard.press('ArrowDown');
      await page.keyboard.press('Enter');
    });
  });
});

test('a link to another view of the open page is followed', async () => {
  await withFleet(1000, async (url) => {
    await withPage(browser, `${url}#colour=toString&show=valueOf`, {}, async (page) => {
      assert.equal(await page.locator('#colour :checked').inputValue(), 'score', 'what is no colour is left out');
      const follow = (hash) => page.evaluate((h) => { location.hash = h; }, hash);
      await follow('#colour=health&cluster=cluster-d&in=cluster-d&node=node-00003');
      await page.locator('#panel h2', { hasText: 'node-00003' }).waitFor();
      await page.locator('#shown', { hasText: '250 of 1,000 nodes' }).waitFor();
      assert.equal(await page.locator('#colour :checked').inputValue(), 'health');
      assert.equal(await page.inputValue('#cluster'), 'cluster-d');
      await follow('#search=7');
      await page.locator('#panel').waitFor({ state: 'hidden' });
      assert.equal(await page.inputValue('#search'), '7');
      assert.equal(await page.locator('#colour :checked').inputValue(), 'score');
      await follow('#in=cluster-d&node=node-99999');
      await page.locator('#panel', { hasText: 'No node node-99999 of cluster cluster-d is known to this gateway.' }).waitFor();
    }, ['status of 404']);
  });
});

test('ages are by the clock of the gateway', async () => {
  await withFleet(8, async (url) => {
    await withPage(browser, url, { unpainted: true }, async (page) => {
      await page.addInitScript(() => {
        const { now } = Date;
        Date.now = () => now() + 3_600_000;
      });
      await page.goto(`${url}#in=cluster-d&node=node-00003`);
      await page.reload();
      await page.locator('#panel .where', { hasText: /seen \d+ (s|min \d+ s) ago/ }).waitFor();
      await page.keyboard.press('Escape');
      await page.locator('#items', { hasText: /\(\d+ min \d+ s\)/ }).waitFor();
    });
  });
});

test('controls can be seen, and fit a narrow window', async () => {
  await withFleet(60, async (url) => {
    for (const colorScheme of ['dark', 'light']) {
      await withPage(browser, url, { colorScheme }, async (page) => {
        // WCAG 2.2, 1.4.11: 3 to 1 for what tells a control from its surroundings.
        const pairs = await page.evaluate(() => [...document.querySelectorAll('#search, select, .quiet:not([hidden]), .segments span, button.figure[aria-pressed="false"]')].map((e) => {
          let around = e.parentElement;
          while (getComputedStyle(around).backgroundColor === 'rgba(0, 0, 0, 0)') around = around.parentElement;
          const rgb = (c) => c.match(/\d+/g).slice(0, 3).map(Number);
          return [e.id || e.textContent, rgb(getComputedStyle(e).borderTopColor), rgb(getComputedStyle(around).backgroundColor)];
        }));
        assert.ok(pairs.length >= 9);
        for (const [name, edge, back] of pairs) assert.ok(contrast(edge, back) >= 3, `${colorScheme} ${name}: ${contrast(edge, back).toFixed(2)}`);
      });
    }
    // WCAG 2.2, 1.4.10: no scrolling to the side at 320 pixels.
    await withPage(browser, `${url}#in=cluster-d&node=node-00003`, { viewport: { width: 320, height: 640 } }, async (page) => {
      await page.locator('#panel .episode').first().waitFor();
      await page.locator('figure[data-signal="throughput"] .u-over').waitFor();
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 320);
      await page.screenshot({ path: path.join(root, '.cache/narrow.png'), fullPage: true });
      await page.keyboard.press('Escape');
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 320);
    });
    // The map's cells are found by shape where the system has its own colours.
    await withPage(browser, url, { forcedColors: 'active' }, async (page) => {
      const grounds = await page.evaluate(() => [...document.querySelectorAll('#colour span')].map((e) => getComputedStyle(e).backgroundColor));
      assert.notEqual(grounds[0], grounds[1], 'the chosen colour is told from the others');
    });
  });
});

test('a gateway that hangs is not taken for one with no news', async () => {
  const server = await bigFleet(8);
  try {
    await withPage(browser, server.url, {}, async (page) => {
      await page.locator('#link[data-state="live"]').waitFor();
      server.signal('SIGSTOP');
      await page.locator('#link', { hasText: 'Stale since' }).waitFor();
      server.signal('SIGCONT');
      await page.locator('#link[data-state="live"]').waitFor();
    });
  } finally {
    server.signal('SIGCONT');
    await server.stop();
  }
});

test('a history that fails takes nothing else with it', async () => {
  await withFleet(8, async (url) => {
    await withPage(browser, url, { unpainted: true }, async (page) => {
      await page.route('**/api/v1/health', (route) => route.fulfill({ json: { status: 'degraded', history: { storage: 'sqlite', ok: false } } }));
      await page.route('**/api/v1/nodes/*/past?*', (route) => route.fulfill({ status: 503, json: { status: 503, detail: 'the disk is on fire' } }));
      await page.goto(`${url}#in=cluster-d&node=node-00003`);
      await page.reload();
      await page.locator('#panel', { hasText: 'What was recorded cannot be read now: the disk is on fire' }).waitFor();
      await page.locator('#panel .episode').first().waitFor();
      await page.locator('figure[data-signal="throughput"] .u-over').waitFor();
      assert.doesNotMatch(await page.locator('#panel').innerText(), /This node cannot be read/);
    }, ['status of 503']);
  });
});

test('a name is text, whatever it looks like', async () => {
  // The same rule for all of the page: nothing is ever parsed as markup.
  const { readdir, readFile } = await import('node:fs/promises');
  const dir = path.join(root, 'extension/fleetviewextension/web/static/js');
  for (const name of await readdir(dir)) {
    const text = await readFile(path.join(dir, name), 'utf8');
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function/, name);
  }
});

test('a name shows what it is, and moves nothing beside it', async () => {
  await withFleet(8, async (url) => {
    await withPage(browser, url, { unpainted: true }, async (page) => {
      await page.addInitScript(() => {
        window.drawn_ = new Set();
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function draw(text, ...rest) {
          window.drawn_.add(text);
          return fillText.call(this, text, ...rest);
        };
      });
      await page.reload();
      await page.locator('#items .who', { hasText: 'node-\\u{202e}00000' }).first().waitFor();
      // Nodes whose names look alike stay nodes of their own.
      assert.equal(await page.locator('#figures b').first().innerText(), '15');
      const names = await page.locator('#items .who').evaluateAll((all) => all.map((e) => e.textContent));
      for (const n of ['node-\\u{202e}00000', '\\u{200b}node-00000', 'node-00000\\u{a0}', 'z', 'y\\u{a}z', 'שלום-16']) assert.ok(names.some((name) => name.startsWith(n)), `${n} of ${names}`);
      await page.locator('#items button', { hasText: '\\u{202e}00000' }).first().click();
      await page.locator('#panel .episode td', { hasText: '\\u{202e}gpu' }).waitFor();
      await page.locator('#panel .reasons', { hasText: 'row\\u{202e}remap' }).waitFor();
      await page.keyboard.press('Escape');
      await page.locator('#items button', { hasText: 'c,d\\e' }).first().click();
      await page.locator('#panel .episode h4', { hasText: 'no reason given' }).waitFor();
      const map = await page.locator('#scroll').boundingBox();
      await page.mouse.move(map.x + 40, map.y + 70);
      await page.locator('#tip').waitFor();
      await page.focus('#scroll');
      const { texts, drawn } = await page.evaluate(() => ({
        texts: [...document.body.querySelectorAll('*')].flatMap((e) => [e.title, e.ariaLabel, ...[...e.childNodes].filter((c) => c.nodeType === Node.TEXT_NODE).map((c) => c.data)]).filter((t) => t?.trim()),
        drawn: [...window.drawn_],
      }));
      const unseen = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
      assert.deepEqual(texts.filter((t) => unseen.test(t)), []);
      assert.ok(drawn.length > 20, `${drawn.length} texts on the map`);
      assert.deepEqual(drawn.filter((t) => unseen.test(t.replaceAll(/[\u2068\u2069]/g, ''))), []);
      assert.ok(drawn.some((t) => t.startsWith('\u2068שלום-16\u2069')), 'isolated');
    });
  }, '-hostile');
});
