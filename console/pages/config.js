// The file as it is served, with problems at their lines, what waits for a restart, and the last reloads.

import { get, useLoaded } from '../api.js';
import { resynced, useLive } from '../live.js';
import { CopyLine, Dot, Empty, ErrorStrip, Text } from '../parts/common.js';
import { clock } from '../pure/time.js';
import { html } from '../ui.js';
import { Add } from './config_add.js';

/** @param {{ Page: any }} props */
export function Config({ Page }) {
    const loaded = useLoaded(() => get('config'), [], resynced.value);
    useLive(['reload'], { reload: () => loaded.reload() });
    const config = /** @type {any} */ (loaded.data);
    return html`<${Page} title="Configuration" sub=${config?.file && html`<span class="mono">${config.file}</span>`}>
        <${ErrorStrip} error=${loaded.error} at=${loaded.at} retry=${loaded.reload} />
        ${
            config?.refused &&
            html`<div class="strip-note bad"><${Dot} state="bad" /><span>
        <b>The file on disk ${config.restart.length ? 'waits for a restart' : 'was refused'} since ${clock(config.refused)}.</b> What was applied before it is in use.</span></div>`
        }
        <div class="page"><${Add} config=${config} reload=${loaded.reload} /><div class="cols"><section class="panel" aria-labelledby="file"><header>
        <h2 id="file">The file</h2><span class="muted">${config?.applied ? `applied at ${clock(config.applied)}` : ''}</span><span class="gap"></span>
        <span class="muted">secrets taken out</span></header>
        ${
            config &&
            (config.text === null
                ? html`<${Empty} level=${3} title="There is no file"><p>To begin one:</p><${CopyLine} text="rialto init" what="Command" />
        <//>`
                : html`<${File} text=${config.text} problems=${config.problems} />`)
        }</section>
        <div class="side-panels"><${Restart} names=${config?.restart ?? []} /><${Problems} config=${config} /><${Reloads} reloads=${config?.reloads ?? null} /></div></div></div><//>`;
}

/** @param {{ text: string, problems: any[] }} props */
function File({ text, problems }) {
    const byLine = new Map();
    for (const problem of problems) byLine.set(problem.line, [...(byLine.get(problem.line) ?? []), problem]);
    return html`<div class="code" role="region" tabindex="0" aria-label="Configuration file">${text
        .split('\n')
        .map((line, index) => {
            const here = byLine.get(index + 1) ?? [];
            const mark = here.some((/** @type {any} */ one) => one.severity === 'error')
                ? 'bad'
                : here.length
                  ? 'warn'
                  : '';
            return html`<div class=${`cl ${mark}`} key=${index}><i>${index + 1}</i><span class=${/^\s*#/u.test(line) ? 'com' : ''}><${Text} text=${line} most=${2000} />
            </span></div>
            ${here.map((/** @type {any} */ one) => html`<div class="said">${one.message}${one.hint ? ` ${one.hint}` : ''}</div>`)}`;
        })}</div>`;
}

/** @param {{ names: string[] }} props Settings that only a restart can change. */
const Restart = ({ names }) =>
    names.length
        ? html`<section class="panel" aria-labelledby="restart"><header><h2 id="restart">Waits for a restart</h2></header>
        <ul class="todo">${names.map(
            name =>
                html`<li key=${name}><${Dot} state="warn" /><div><b><code>${name}</code></b><p>Nothing of the file is applied before.</p></div></li>`
        )}</ul></section>`
        : null;

/** @param {{ config: any }} props */
function Problems({ config }) {
    const problems = config?.problems ?? [];
    return html`<section class="panel" aria-labelledby="problems"><header><h2 id="problems">Problems</h2><span class="gap"></span>
        <span class="muted">${problems.length || ''}</span></header>
        ${config && !problems.length && html`<${Empty} level=${3} title="None"><p>Mistakes are listed with line, column and what to do.</p><//>`}
        <ul class="todo">${problems.map(
            (/** @type {any} */ one, /** @type {number} */ index) => html`<li key=${index}>
        <${Dot} state=${one.severity === 'error' ? 'bad' : 'warn'} /><div><b>${one.message}</b><p><code>${one.line}:${one.column}</code> ${one.hint}</p></div>
        </li>`
        )}</ul></section>`;
}

/** @param {{ reloads: any[] | null }} props */
const Reloads = ({
    reloads
}) => html`<section class="panel" aria-labelledby="reloads"><header><h2 id="reloads">Last reloads</h2></header>
    ${reloads?.length === 0 && html`<${Empty} level=${3} title="None since the start"><p>What each reload changed appears here.</p><//>`}
    <ul class="todo">${(reloads ?? []).map(
        one => html`<li key=${one.at}><${Dot} state=${one.outcome === 'applied' ? 'ok' : 'bad'} />
        <div><b>${one.outcome}</b> <span class="muted">at ${clock(one.at)}</span><p><${Text} text=${changesOf(one)} most=${600} /></p></div></li>`
    )}</ul></section>`;

/** @param {any} reload */
function changesOf({ added, changed, removed, closed, settings, problems }) {
    const named = { added, changed, removed, 'closed groups': closed, settings };
    const parts = Object.entries(named).filter(([, names]) => names?.length);
    return (
        parts.map(([what, names]) => `${what} ${names.join(', ')}`).join('; ') ||
        problems.join('; ') ||
        'nothing changed'
    );
}
