export { render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export { signal } from "@preact/signals";
export type { Signal } from "@preact/signals";
export declare const html: (strings: TemplateStringsArray, ...values: any[]) => any;
