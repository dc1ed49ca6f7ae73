export { Fragment, createContext, h, render } from "preact";
export { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { batch, computed, effect, signal, useComputed, useSignal } from "@preact/signals";
export type { Signal } from "@preact/signals";
export declare const html: (strings: TemplateStringsArray, ...values: any[]) => any;
