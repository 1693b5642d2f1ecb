// Chromium for scripts that need a real browser. `setup.sh DEST chromium` installs it.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const PROGRAM = fileURLToPath(new URL('../chromium', import.meta.url));
/** How long a page may take for one step, on a machine with other work. */
export const STEP_TIMEOUT = 60_000;

const FLAGS = [
    '--no-sandbox', // it does not run as root otherwise
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--disable-dev-shm-usage', // containers have little of it
    // Pages of others refer to fonts elsewhere. Interception of requests would keep them away too, but playwright then
    // answers preflights itself.
    '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE *.localhost, EXCLUDE 127.0.0.1'
];

/** A browser with an empty profile, without a window, that reaches this machine only. Each context of it has cookies and storage of its own. */
export async function openBrowser() {
    if (!existsSync(PROGRAM)) throw new Error('chromium is not installed; run setup.sh DEST chromium');
    return chromium.launch({ executablePath: PROGRAM, headless: true, args: FLAGS, timeout: STEP_TIMEOUT });
}

/** A page in a context of its own, whose failures go to stderr. */
export async function openPage(browser) {
    const context = await browser.newContext();
    context.setDefaultTimeout(STEP_TIMEOUT);
    const page = await context.newPage();
    page.on('pageerror', error => console.error(`page: ${error.stack ?? error}`));
    page.on('console', message => console.error(`page: ${message.type()}: ${message.text()}`));
    page.on('requestfailed', request => console.error(`page: ${request.url()}: ${request.failure()?.errorText}`));
    return page;
}
