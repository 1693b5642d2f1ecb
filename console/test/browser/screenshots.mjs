// Pictures of every page, light and dark, into the folder that is given: screenshots.mjs FOLDER

import { mkdirSync } from 'node:fs';
import { answerWith, browser, open, PAGES, visit } from './setup.js';

const folder = process.argv[2];
mkdirSync(folder, { recursive: true });
for (const colorScheme of ['light', 'dark']) {
    const page = await open({ colorScheme });
    await answerWith(page);
    // The stream of canned pages never answers; the pictures are to show what a page looks like that is live.
    await page.route('**/admin/v1/live**', route => route.continue());
    for (const [name, at] of Object.entries(PAGES)) {
        await visit(page, at);
        await page.waitForFunction(() => !document.querySelector('.bones') && document.querySelector('.live .dot.ok'));
        await page.screenshot({ path: `${folder}/${name}-${colorScheme}.png` });
    }
    await page.context().close();
}
await browser.close();
