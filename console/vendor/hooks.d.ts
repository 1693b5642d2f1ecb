export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
export function useCallback<T extends (...args: never[]) => unknown>(callback: T, inputs: readonly unknown[]): T;
export function useRef<T>(initial: T): { current: T };
export function useErrorBoundary(callback?: (error: unknown) => void): [unknown, () => void];
export function useId(): string;
