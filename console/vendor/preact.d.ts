export type ComponentChild = VNode | string | number | boolean | null | undefined | ComponentChild[];
export interface VNode { type: unknown; props: Record<string, unknown>; key: unknown }
export function h(type: unknown, props: object | null, ...children: unknown[]): VNode;
export function render(node: unknown, parent: Element): void;
export const Fragment: unique symbol;
export class Component<P = Record<string, unknown>, S = Record<string, unknown>> {
    props: P; state: S;
    setState(state: Partial<S>): void;
    render(props: P, state: S): unknown;
}
