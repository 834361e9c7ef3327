// SPDX-License-Identifier: Apache-2.0

// What needs attention, over a fleet with one trouble of each kind.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { axe, bigFleet, launch, root, withPage } from './harness.mjs';

const images = path.join(root, process.env.IMAGES ?? '.cache/images');
const SLOW = 'gpu-h100-r03-n06.train-east.example.net';
const quiet = ['willReadFrequently'];
const dark = { colorScheme: 'dark', viewport: { width: 1280, height: 800 } };
const HOUR = 3_600_000;
let browser;
let server;

before(async () => { [browser, server] = await Promise.all([launch(), bigFleet(0, '-sick')]); });
after(async () => {
  await browser?.close();
  await server?.stop();
});

// past makes up what was recorded: 34 minutes ago the node lost 28 %.
function past(url) {
  const q = new URL(url).searchParams;
  const now = Date.now();
  const since = { '1h': now - HOUR, '24h': now - 24 * HOUR, '7d': now - 168 * HOUR }[q.get('since')] ?? Date.parse(q.get('since'));
  const until = Date.parse(q.get('until') ?? new Date(now).toISOString());
  const at = Array.from({ length: 120 }, (_, i) => since + ((until - since) * (i + 1)) / 120);
  const of = (f) => at.map(f);
  return {
    since, until, at: of((t) => new Date(t).toISOString()),
    signals: [{ signal: 'throughput', unit: '{step}/s', value: of((t) => (t > now - 34 * 60_000 ? 0.72 : 1) / 0.412), median: of((t) => (1 + 0.002 * Math.sin(t / 3e5)) / 0.412), scale: of(() => 0.012), threshold: of(() => 0.95 / 0.412) }],
  };
}

// sick opens the page; asked has the answers about the past.
const sick = (options, use) => withPage(browser, server.url, options, async (page) => {
  const asked = [];
  await page.route('**/api/v1/health', (route) => route.fulfill({ json: { history: { storage: 'sqlite' } } }));
  await page.route('**/past?*', (route) => {
    asked.push(past(route.request().url()));
    return route.fulfill({ json: asked.at(-1) });
  });
  await page.locator('#items .item').first().waitFor();
  await use(page, asked);
}, quiet);

const slow = (page) => page.locator('#items .item[data-kind="straggler"]');
const step = (page) => page.locator('figure[data-signal="step"] .u-over');
const box = (page, selector) => page.locator(selector).first().boundingBox();

test('the page begins with the list of the API: what, why, where, what to do, since when, the cost', async () => {
  await sick(dark, async (page) => {
    assert.equal(await page.evaluate(() => document.querySelector('main').firstElementChild.id), 'attention');
    const { items } = await fetch(`${server.url}api/v1/attention`).then((r) => r.json());
    const shown = await page.locator('#items .item').evaluateAll((all) => all.map((e) => [e.dataset.kind, e.dataset.level, e.querySelector('.what').lastChild.textContent, e.querySelector('.next').textContent]));
    assert.deepEqual(shown, items.map((i) => [i.kind, i.severity, i.what, i.next]));
    assert.equal(new Set(items.map((i) => i.kind)).size, 5, 'one of each kind');
    const text = await slow(page).innerText();
    assert.match(text, /^gpu-h100\s*-r03-n06\s+rank 139 \(GPU 3\)\s+critical/);
    assert.match(text, /since [\d: -]+\(34 min \d+ s\)\s*costs 42 GPUs/);
    assert.match(await page.locator('#items .item[data-kind="lost_gpu"]').innerText(), /r07-n05\s+GPU 5/);
    const [list, map] = [await box(page, '#attention'), await box(page, '.map')];
    assert.ok(map.x >= list.x + list.width - 1 && Math.abs(map.y - list.y) < 2, 'the map stands beside it');
    await page.mouse.move(5, 5);
    await page.screenshot({ path: path.join(images, 'attention.png') });
  });
});

test('each count shows only what it counts, in the list and on the map, and once more all', async () => {
  await sick({}, async (page) => {
    const { counts } = await fetch(`${server.url}api/v1/attention`).then((r) => r.json());
    for (const [show, kind, count, nodes] of [['stragglers', 'straggler group_fault', counts.stragglers, 7], ['lost', 'lost_gpu', counts.lost_gpus, 1], ['sick', 'sick_gpu', counts.sick_gpus, 2], ['missing', 'missing_node', counts.missing_nodes, 1], ['faults', 'group_fault', counts.group_faults, 6]]) {
      const button = page.locator(`#figures [data-show="${show}"]`);
      assert.equal(await button.locator('b').innerText(), String(count));
      await button.click();
      await page.locator('#shown', { hasText: `${nodes} of 96 nodes` }).waitFor();
      await page.waitForFunction((k) => [...document.querySelectorAll('#items .item')].every((e) => k.split(' ').includes(e.dataset.kind)), kind);
      assert.ok(await page.locator('#items .item').count() > 0);
      assert.equal(await button.getAttribute('aria-pressed'), 'true');
      await button.click();
      await page.waitForFunction(() => document.getElementById('shown').textContent === '');
    }
    await page.goBack(); // to the former view
    await page.locator('#shown', { hasText: '6 of 96 nodes' }).waitFor();
  });
});

test('a node has health and what to do first, then its GPUs, then plots with its peers in seconds', async () => {
  await sick({ ...dark, viewport: { width: 1280, height: 1080 } }, async (page) => {
    await slow(page).click();
    await step(page).waitFor();
    assert.deepEqual((await page.locator('#panel h3').allInnerTexts()).slice(0, 3), ['Health and what to do', 'GPUs', 'Against its peers']);
    assert.match(await page.locator('#panel .episode').first().innerText(), /straggler · rank 139 \(GPU 3\)[^]*What[^]*Next/);
    await page.waitForTimeout(300);
    await page.locator('#panel').screenshot({ path: path.join(images, 'node.png') });
    const legend = page.locator('figure[data-signal="step"] .u-legend');
    assert.match(await legend.innerText(), /this node[^]*peers’ median[^]*threshold[^]*usual from/);
    const [own, peers] = (await legend.locator('.u-value').allInnerTexts()).slice(1, 3).map(Number);
    assert.ok(own > 0.5 && own < 0.65, `${own} s`);
    assert.ok(peers > 0.4 && peers < 0.42, `${peers} s`);
    assert.equal(await page.locator('figure[data-signal="throughput"]').count(), 0, 'a throughput of steps has one figure');
  });
});

test('the past is of an hour, a day or a week, and is zoomed by pointer and by keyboard', async () => {
  await sick({}, async (page, asked) => {
    await slow(page).click();
    await step(page).waitFor();
    const next = async (act, hours) => {
      const before = asked.length;
      await act();
      for (const end = Date.now() + 30_000; asked.length === before;) {
        assert.ok(Date.now() < end, 'it is asked for');
        await page.waitForTimeout(50);
      }
      const { since, until } = asked.at(-1);
      assert.ok(Math.abs((until - since) / HOUR - hours) < hours / 10, `${(until - since) / HOUR} h, not ${hours}`);
      assert.equal(asked.length, before + 1, 'once');
    };
    const pick = (label) => () => page.locator('#span label', { hasText: label }).click();
    await next(pick('24 h'), 24);
    await next(pick('7 d'), 168);
    // Esc closes the node; the choice stays.
    await page.locator('#span :checked').focus();
    await page.keyboard.press('Escape');
    await page.locator('#panel').waitFor({ state: 'hidden' });
    await next(() => slow(page).click(), 168);
    await next(pick('1 h'), 1);
    await step(page).scrollIntoViewIfNeeded();
    const { x, y, width } = await step(page).boundingBox();
    await next(async () => {
      await page.mouse.move(x + width * 0.25, y + 30);
      await page.mouse.down();
      await page.mouse.move(x + width * 0.5, y + 30, { steps: 5 });
      await page.mouse.up();
    }, 0.25);
    assert.equal(await page.locator('#panel .plots').getAttribute('data-zoomed'), 'true');
    await next(() => page.getByRole('button', { name: 'All of it' }).press('Enter'), 1);
    await next(() => page.getByRole('button', { name: 'Zoom in' }).press('Enter'), 0.5);
  });
});

test('a plot shows the time that is chosen, also where little of it was recorded', async () => {
  await sick({}, async (page) => {
    let last;
    await page.route('**/past?*', (route) => {
      last = past(route.request().url());
      const [s] = last.signals;
      const young = (list) => list.filter((_, i) => Date.parse(last.at[i]) > Date.now() - HOUR);
      return route.fulfill({ json: { ...last, at: young(last.at), signals: [{ ...s, ...Object.fromEntries(['value', 'median', 'scale', 'threshold'].map((of) => [of, young(s[of])])) }] } });
    });
    await slow(page).click();
    await step(page).waitFor();
    const week = page.waitForResponse('**/past?*since=7d*');
    await page.locator('#span label', { hasText: '7 d' }).click();
    await week;
    const none = page.locator('figure[data-signal="step"] .none');
    assert.equal(await none.isVisible(), false);
    await step(page).scrollIntoViewIfNeeded();
    const { x, y, width } = await step(page).boundingBox();
    await page.mouse.move(x + width * 0.25, y + 30);
    await page.mouse.down();
    await page.mouse.move(x + width * 0.5, y + 30, { steps: 5 });
    const zoomed = page.waitForResponse('**/past?*until=*');
    await page.mouse.up();
    await zoomed;
    await none.filter({ hasText: 'Nothing was recorded in this time.' }).waitFor();
    assert.ok(Math.abs((last.until - last.since) / HOUR - 42) < 5, `${(last.until - last.since) / HOUR} h`);
  });
});

test('the browser’s way back closes the node, forward opens it, and Esc leaves no step behind', async () => {
  await sick({}, async (page) => {
    await slow(page).click();
    await page.locator('#panel h2', { hasText: SLOW }).waitFor();
    await page.goBack();
    await page.locator('#panel').waitFor({ state: 'hidden' });
    assert.equal(new URL(page.url()).hash, '');
    await page.goForward();
    await page.locator('#panel h2', { hasText: SLOW }).waitFor();
    await page.locator('#colour label', { hasText: 'Health' }).click();
    await page.keyboard.press('Escape');
    await page.locator('#panel').waitFor({ state: 'hidden' });
    await page.waitForFunction(() => location.hash === '#colour=health' && history.state === null);
    await slow(page).click();
    await page.getByRole('button', { name: 'Close the node' }).click();
    assert.equal(await page.evaluate(() => document.activeElement.dataset.kind), 'straggler', 'the row has the focus again');
  });
});

test('the address may name what the gateway does not know', async () => {
  const refused = ['404'];
  await withPage(browser, `${server.url}#cluster=zzz&in=train-east&node=nobody`, {}, async (page) => {
    let asked = 0;
    page.on('request', (r) => { asked += r.url().includes('attention?cluster=zzz'); });
    await page.locator('#panel', { hasText: 'No node nobody of cluster train-east is known to this gateway.' }).waitFor();
    assert.equal(await page.getByText('Waiting for').locator('visible=true').count(), 0);
    await page.locator('#items', { hasText: 'no cluster "zzz" is known' }).waitFor({ state: 'attached' });
    const before = asked;
    await page.waitForTimeout(3500);
    assert.equal(asked, before, 'what is not known is asked for once');
  }, [...quiet, ...refused]);
});

test('a fault of many names some, a colour says the severity of the item, and nothing else is told of the missing', async () => {
  await sick({}, async (page) => {
    assert.match(await page.locator('#items .item[data-kind="group_fault"]').innerText(), /r09-n01, gpu-h100-r09-n02, gpu-h100-r09-n03, gpu-h100-r09-n04 and 2 more/);
    const badges = async (item) => {
      const level = await item.getAttribute('data-level');
      await item.click();
      await page.locator('#panel .episode[data-open="true"]').first().waitFor();
      return [level, await page.locator('#panel .badges .badge').evaluateAll((all) => all.map((e) => [e.textContent, e.dataset.level]))];
    };
    const silent = page.locator('#items .item[data-kind="missing_node"]');
    assert.deepEqual(await badges(silent).then(([level, [first, ...more]]) => [first[1] === level, first[0], ...more]), [true, 'missing', ['last report: healthy', '']]);
    await page.locator('#panel', { hasText: 'how they are now is not known' }).waitFor();
    await page.keyboard.press('Escape');
    const [level, [first]] = await badges(slow(page));
    assert.deepEqual(first, ['▲ straggler', level]);
    await page.locator('#panel', { hasText: 'Nothing holds a GPU’s health down.' }).waitFor();
  });
});

test('where there are several clusters, a row names its own', async () => {
  const several = await bigFleet(8);
  try {
    await withPage(browser, several.url, {}, async (page) => {
      await page.locator('#items .who', { hasText: /node-00003\s*cluster-d/ }).waitFor({ timeout: 20_000 });
    }, quiet);
  } finally {
    await several.stop();
  }
});

test('arrow keys work at once, on the map and in the list, and ? explains the words', async () => {
  await sick({}, async (page) => {
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'scroll');
    await page.locator('#items .item').first().focus();
    await page.keyboard.press('ArrowDown');
    assert.equal(await page.evaluate(() => [...document.querySelectorAll('#items .item')].indexOf(document.activeElement)), 1);
    await page.keyboard.press('?');
    await page.locator('#help dt', { hasText: /^Suspicion$/ }).waitFor();
    await axe(page, 'help');
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('#help').isVisible(), false);
  });
});

test('labels on the map omit what names share', async () => {
  await withPage(browser, server.url, { unpainted: true }, async (page) => {
    await page.addInitScript(() => {
      window.drawn_ = new Set();
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function draw(text, ...rest) {
        window.drawn_.add(text.replaceAll(/[\u2068\u2069]/g, ''));
        return fillText.call(this, text, ...rest);
      };
    });
    await page.reload();
    await page.waitForFunction(() => window.drawn_.size > 60);
    const drawn = await page.evaluate(() => [...window.drawn_]);
    assert.ok(drawn.includes('r03-n05') && drawn.some((t) => t.startsWith('stage-0')), `${drawn.slice(0, 20)}`);
    assert.ok(!drawn.some((t) => t.includes('example.net')));
  }, quiet);
});

test('a phone shows the list first, and a node as a sheet', async () => {
  await sick({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2, colorScheme: 'dark' }, async (page) => {
    const [list, map] = [await box(page, '#attention'), await box(page, '.map')];
    assert.ok(list.y < 300 && map.y >= list.y + list.height - 1, 'the map is below the list');
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390);
    await slow(page).tap();
    await page.locator('#panel .episode').first().waitFor();
    const sheet = await box(page, '#panel');
    assert.ok(sheet.y > 50 && sheet.y + sheet.height >= 843 && sheet.width === 390, 'a sheet at the bottom');
    await axe(page, 'sheet');
    await page.screenshot({ path: path.join(root, '.cache/phone.png') });
    await page.getByRole('button', { name: 'Close the node' }).tap();
    await page.locator('#panel').waitFor({ state: 'hidden' });
  });
});

for (const colorScheme of ['dark', 'light']) {
  test(`${colorScheme}: red is critical, amber is major, grey is over, nothing else has these colours, and axe-core finds nothing`, async () => {
    await sick({ colorScheme }, async (page) => {
      await axe(page, 'list');
      const levels = () => page.evaluate(() => {
        const probe = document.body.appendChild(document.createElement('i'));
        const [critical, major, over] = ['critical', 'major', 'over'].map((name) => {
          probe.style.color = `var(--${name})`;
          return getComputedStyle(probe).color;
        });
        probe.remove();
        const misused = [...document.querySelectorAll('body *')].filter((e) => {
          const s = getComputedStyle(e);
          const level = e.closest('[data-level="critical"], [data-level="major"], [data-health]');
          return !level && e.textContent && [critical, major].some((c) => c === s.color || c === s.backgroundColor);
        }).map((e) => e.outerHTML.slice(0, 80));
        const edges = (s) => [...document.querySelectorAll(s)].map((e) => getComputedStyle(e).borderLeftColor);
        return { misused, wrong: [[critical, '[data-level="critical"].row, [data-open="true"][data-level="critical"]'], [major, '[data-level="major"].row'], [over, '[data-open="false"]']]
          .flatMap(([colour, s]) => edges(s).filter((c) => c !== colour)) };
      });
      assert.deepEqual(await levels(), { misused: [], wrong: [] });
      await slow(page).click();
      await step(page).waitFor();
      await page.locator('#panel .episode[data-open="false"]').waitFor();
      assert.deepEqual(await levels(), { misused: [], wrong: [] });
      await axe(page, 'node');
    });
  });
}

test('loading says what the page waits for', async () => {
  await withPage(browser, server.url, { unpainted: true }, async (page) => {
    await page.route('**/api/v1/observe*', () => {}); // no answer
    await page.reload();
    await page.locator('#items', { hasText: 'Waiting for the gateway’s first answer' }).waitFor();
    await page.locator('#empty', { hasText: 'Waiting for the gateway’s list of nodes' }).waitFor();
  }, quiet);
  await sick({}, async (page) => {
    let go;
    const wait = new Promise((done) => { go = done; });
    await page.route('**/api/v1/nodes/*', async (route) => { await wait; await route.continue(); });
    await slow(page).click();
    await page.locator('#panel', { hasText: 'Waiting for the gateway’s view of this node' }).waitFor();
    await page.locator('#panel', { hasText: 'Waiting for the gateway’s verdict' }).waitFor();
    go();
    await page.locator('#panel .episode').first().waitFor();
  });
});
